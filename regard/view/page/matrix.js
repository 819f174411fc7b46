// @ts-check
// A heat map with its tokens: rows ask, columns are looked at. Several views draw one.

import { theme } from "./colour.js";
import { clamp, make, readable } from "./dom.js";
import { Sheet, pixels, shorten, width } from "./surface.js";

const SIZE = 13; // of letters
const LARGE = { cell: 52, size: 16 }; // of a grid with room
const LABEL = 9; // most pixels of a label, by the size of its letters
const BOLD = 600; // the selected one

/** @typedef {{rows: string[], columns: string[], values: ArrayLike<number>, kind?: "weight" | "signed"}} Grid */

/** Where everything goes; few cells grow with the room there is, up to `most`. @param {Grid} grid @param {number} room @param {number} [most] */
export function layOut(grid, room, most = 34) {
  const box = laidOut(grid, room, most, SIZE);
  return box.cell >= LARGE.cell ? laidOut(grid, room, most, LARGE.size) : box;
}

function laidOut(grid, room, most, size) {
  const longest = (labels) => Math.min(LABEL * size, Math.max(8, ...labels.slice(0, 400).map((label) => width(readable(label), size, BOLD))));
  const left = Math.ceil(longest(grid.rows)) + 10;
  const top = Math.ceil(longest(grid.columns)) + 10;
  const fits = (room - left - 2) / grid.columns.length;
  const tall = Math.max((0.62 * innerHeight) / grid.rows.length, 34); // seen whole without scrolling
  const cell = clamp(Math.min(fits, tall, 900 / grid.rows.length), Math.min(fits, 1), most);
  const whole = cell >= 4 ? Math.floor(cell) : cell;
  return { left, top, size, cell: whole, wide: left + whole * grid.columns.length + 2, high: top + whole * grid.rows.length + 2 };
}

/**
 * @param {any} surface @param {Grid} grid @param {ReturnType<typeof layOut>} box
 * @param {{row: number, column: number} | null} at @param {{picture?: HTMLCanvasElement, path?: number[], fixed?: Map<number, number>}} [more]
 */
export function paint(surface, grid, box, at, more = {}) {
  const colours = theme();
  const { left, top, cell } = box;
  const picture = more.picture ?? pixels(grid.values, grid.rows.length, grid.columns.length, grid.kind ?? "weight");
  surface.image(picture, left, top, cell * grid.columns.length, cell * grid.rows.length);
  const stride = Math.max(1, Math.ceil(12 / cell));
  const size = clamp(cell - 2, 10, box.size);
  grid.rows.forEach((label, i) => {
    if (i % stride && i !== at?.row) return;
    if (stride > 1 && at && i !== at.row && Math.abs(i - at.row) < stride) return;
    const chosen = i === at?.row;
    const weight = chosen ? BOLD : "normal";
    surface.text(left - 7, top + (i + 0.5) * cell, shorten(label, size, left - 10, weight), { size, anchor: "end", fill: chosen ? colours.accent : colours.ink, weight });
  });
  grid.columns.forEach((label, i) => {
    if (i % stride && i !== at?.column) return;
    if (stride > 1 && at && i !== at.column && Math.abs(i - at.column) < stride) return;
    const chosen = i === at?.column;
    const weight = chosen ? BOLD : "normal";
    surface.text(left + (i + 0.5) * cell, top - 7, shorten(label, size, top - 10, weight), { size, turn: -90, fill: chosen ? colours.accent : colours.ink, weight });
  });
  if (more.path) walk(surface, box, more.path, colours);
  for (const [row, column] of more.fixed ?? [])
    surface.rect(left + column * cell + 2, top + row * cell + 2, cell - 4, cell - 4, { stroke: colours.accent, thick: 2, round: cell / 2 });
  if (at) mark(surface, grid, box, at, colours);
}

/** The cell that is told of, and thin lines from it to its tokens. */
function mark(surface, grid, { left, top, cell }, at, colours) {
  const x = left + at.column * cell;
  const y = top + at.row * cell;
  surface.path(`M${left} ${y + cell / 2}H${x}M${x + cell / 2} ${top}V${y}`, { stroke: colours.accent, thick: 1, alpha: 0.6 });
  const inset = cell < 6 ? -2 : 0;
  surface.rect(x + inset, y + inset, cell - 2 * inset, cell - 2 * inset, { stroke: colours.accent, thick: 2, round: 2 });
}

/** The hard path: where each row looks most; past rows that look nowhere. */
function walk(surface, { left, top, cell }, path, colours) {
  const points = path.flatMap((column, row) => (column < 0 ? [] : [[left + (column + 0.5) * cell, top + (row + 0.5) * cell]]));
  if (!points.length) return;
  surface.path(`M${points.map((point) => point.join(" ")).join("L")}`, { stroke: colours.accent, thick: 1.5, alpha: 0.55 });
  const r = clamp(cell / 7, 1, 3.5);
  for (const [x, y] of points) surface.rect(x - r, y - r, 2 * r, 2 * r, { fill: colours.accent, round: r });
}

/** A heat map on a canvas that can be pointed at, clicked and walked through by keys. */
export class Matrix {
  /** @param {any} app @param {string} label @param {{point?: (place: any) => void, pick: (place: any) => void}} hands */
  constructor(app, label, hands) {
    this.hands = hands;
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": label, "aria-describedby": "cell" });
    this.element = make("div", { class: "scroll" }, this.canvas);
    this.grid = null;
    this.canvas.addEventListener("pointermove", (event) => hands.point?.(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => hands.point?.(null));
    this.canvas.addEventListener("click", (event) => { const place = this.under(event); if (place) hands.pick(place); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {Grid} grid @param {number} room @param {any} at @param {any} [more] @param {number} [most] */
  show(grid, room, at, more = {}, most = 34) {
    if (grid !== this.grid || room !== this.room) {
      this.grid = grid;
      this.room = room;
      this.box = layOut(grid, room, most);
      this.picture = pixels(grid.values, grid.rows.length, grid.columns.length, grid.kind ?? "weight");
    }
    this.at = at;
    paint(new Sheet(this.canvas, this.box.wide, this.box.high), grid, this.box, at, { ...more, picture: this.picture });
  }

  forget() {
    this.grid = null;
  }

  under(event) {
    const { left, top, cell } = this.box;
    const row = Math.floor((event.offsetY - top) / cell);
    const column = Math.floor((event.offsetX - left) / cell);
    const inside = row >= 0 && column >= 0 && row < this.grid.rows.length && column < this.grid.columns.length;
    return inside ? { row, column } : null;
  }

  key(event) {
    if (!this.at || event.altKey || event.ctrlKey || event.metaKey) return;
    const { row, column } = this.at;
    const { rows, columns, values } = this.grid;
    const line = Array.from({ length: columns.length }, (_, i) => values[row * columns.length + i]);
    const to = {
      ArrowUp: { row: row - 1, column }, ArrowDown: { row: row + 1, column },
      ArrowLeft: { row, column: column - 1 }, ArrowRight: { row, column: column + 1 },
      Home: { row, column: 0 }, End: { row, column: columns.length - 1 },
      Enter: { row, column: line.indexOf(Math.max(...line)) },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.at = { row: clamp(to.row, 0, rows.length - 1), column: clamp(to.column, 0, columns.length - 1) }; // the next key may come before the next frame
    this.hands.pick(this.at);
  }
}
