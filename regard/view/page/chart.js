// @ts-check
// A curve or two, with axes, on any surface.

import { theme } from "./colour.js";
import { d3 } from "./d3.js";
import { shorten } from "./surface.js";

const EDGE = { left: 52, right: 12, top: 26, bottom: 28 };
const FEW = 12; // points up to which each is marked
const WIDE = 4; // times as much, from where on an axis may be logarithmic

/**
 * `more` is a second curve, dashed. `at` is a place on the horizontal axis.
 * @param {any} surface @param {{x: number, y: number, wide: number, high: number}} box
 * @param {{title: string, points: [number, number][], more?: [number, number][], log?: boolean, at?: number, until?: number}} curve
 */
export function draw(surface, box, { title, points, more = [], log = false, at, until }) {
  const colours = theme();
  const all = [...points, ...more];
  const [xs, ys] = [all.map(([x]) => x), all.map(([, y]) => y)];
  const x = d3.scaleLinear([until === undefined ? Math.min(...xs) : 0, until ?? Math.max(...xs)], [box.x + EDGE.left, box.x + box.wide - EDGE.right]);
  const range = [box.y + box.high - EDGE.bottom, box.y + EDGE.top];
  const [low, high] = d3.extent(ys);
  const decades = log && low > 0 && high > WIDE * low;
  const y = (decades ? d3.scaleLog : d3.scaleLinear)([low, high], range).nice();
  surface.text(box.x + EDGE.left, box.y + 9, shorten(title, 12, box.wide - EDGE.left), { size: 12, fill: colours.quiet });
  for (const tick of decades ? logTicks(...y.domain()) : y.ticks(3)) {
    surface.path(`M${box.x + EDGE.left} ${y(tick)}H${box.x + box.wide - EDGE.right}`, { stroke: colours.line });
    surface.text(box.x + EDGE.left - 6, y(tick), short(tick), { size: 11, anchor: "end", fill: colours.quiet });
  }
  for (const tick of x.ticks(Math.max(2, Math.floor(box.wide / 55)))) surface.text(x(tick), box.y + box.high - 12, short(tick), { size: 11, anchor: "middle", fill: colours.quiet });
  const line = d3.line((point) => x(point[0]), (point) => y(point[1]));
  for (const [curve, dash] of [[more, [5, 3]], [points, []]]) {
    if (!curve.length) continue;
    surface.path(line(curve), { stroke: colours.ink, thick: 1.75, dash });
    if (curve.length <= FEW) for (const [px, py] of curve) surface.rect(x(px) - 2, y(py) - 2, 4, 4, { fill: colours.ink, round: 2 });
  }
  if (at === undefined) return;
  const near = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
  surface.path(`M${x(at)} ${range[1]}V${range[0]}`, { stroke: colours.accent, thick: 1.5, alpha: 0.7 });
  surface.rect(x(near[0]) - 3.5, y(near[1]) - 3.5, 7, 7, { fill: colours.accent, round: 3.5 });
}

/** Round numbers, four or so: 1, 2, 5, 10; over more decades 1, 10; over many, every so many. @param {number} low @param {number} high */
function logTicks(low, high) {
  const decades = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const within = (digits) => decades.flatMap((power) => digits.map((digit) => digit * 10 ** power)).filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  const few = [[1, 2, 5], [1, 3], [1]].map(within).find((ticks) => ticks.length > 1 && ticks.length <= 5);
  return few ?? within([1]).filter((_, i, all) => i % Math.ceil(all.length / 4) === 0);
}

/** @param {number} value */
function short(value) {
  const size = Math.abs(value);
  const text = size >= 1e4 ? d3.format(".2~s")(value) : size && size < 1e-3 ? Number(value.toPrecision(2)).toExponential() : String(Number(value.toPrecision(5)));
  return text.replaceAll("-", "−");
}
