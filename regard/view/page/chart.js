// @ts-check
// A curve or some, with axes, on any surface.

import { theme } from "./colour.js";
import { d3 } from "./d3.js";

const EDGE = { left: 52, right: 12, top: 26, bottom: 28 };

/**
 * @param {any} surface @param {{x: number, y: number, wide: number, high: number}} box
 * @param {{title: string, points: [number, number][], log?: boolean, at?: number}} curve
 */
export function draw(surface, box, { title, points, log = false, at }) {
  const colours = theme();
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const x = d3.scaleLinear([Math.min(...xs), Math.max(...xs)], [box.x + EDGE.left, box.x + box.wide - EDGE.right]);
  const range = [box.y + box.high - EDGE.bottom, box.y + EDGE.top];
  const positive = log && ys.every((value) => value > 0);
  const y = (positive ? d3.scaleLog : d3.scaleLinear)(d3.extent(ys), range).nice();
  surface.text(box.x + EDGE.left, box.y + 9, title, { size: 12, fill: colours.quiet });
  const ticks = positive ? y.ticks(4).filter((_, i, all) => i % Math.ceil(all.length / 4) === 0) : y.ticks(4);
  for (const tick of ticks) {
    surface.path(`M${box.x + EDGE.left} ${y(tick)}H${box.x + box.wide - EDGE.right}`, { stroke: colours.line });
    surface.text(box.x + EDGE.left - 6, y(tick), short(tick), { size: 11, anchor: "end", fill: colours.quiet });
  }
  for (const tick of x.ticks(Math.max(2, Math.floor(box.wide / 55)))) surface.text(x(tick), box.y + box.high - 12, short(tick), { size: 11, anchor: "middle", fill: colours.quiet });
  const line = d3.line((point) => x(point[0]), (point) => y(point[1]));
  surface.path(line(points), { stroke: colours.ink, thick: 1.75 });
  if (at === undefined) return;
  const near = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
  surface.path(`M${x(at)} ${range[1]}V${range[0]}`, { stroke: colours.accent, thick: 1.5, alpha: 0.7 });
  surface.rect(x(near[0]) - 3.5, y(near[1]) - 3.5, 7, 7, { fill: colours.accent, round: 3.5 });
}

/** @param {number} value */
function short(value) {
  const size = Math.abs(value);
  const text = size >= 1e4 ? d3.format(".2~s")(value) : size && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "−");
}
