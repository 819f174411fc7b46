// @ts-check
// A view as SVG, PNG or CSV, with a line below it that says of which model it is.

import { theme } from "./colour.js";
import { Sheet, Vector } from "./surface.js";

const FOOT = 30;

/** @param {{wide: number, high: number, paint: (surface: any) => void}} picture @param {string} line */
function drawn(picture, line, make) {
  const colours = theme();
  const [wide, high] = [Math.ceil(picture.wide) + 32, Math.ceil(picture.high) + 16 + FOOT];
  const surface = make(wide, high, colours.paper);
  picture.paint(new Moved(surface, 16, 16));
  surface.text(16, high - FOOT / 2, line, { size: 11, fill: colours.quiet });
  return surface;
}

/** The same pencils, a little to the right and below. */
class Moved {
  constructor(inner, x, y) {
    this.inner = inner;
    this.x = x;
    this.y = y;
  }

  rect(x, y, ...rest) { this.inner.rect(x + this.x, y + this.y, ...rest); }
  text(x, y, ...rest) { this.inner.text(x + this.x, y + this.y, ...rest); }
  image(what, x, y, ...rest) { this.inner.image(what, x + this.x, y + this.y, ...rest); }
  path(d, how) { this.inner.path(moved(d, this.x, this.y), how); }
}

/** A path elsewhere: only its absolute commands move. @param {string} d */
export function moved(d, dx, dy) {
  return d.replace(/([MLCQHV])([^A-Za-z]*)/g, (_, command, given) => {
    const numbers = given.match(/-?[\d.]+(?:e-?\d+)?/g)?.map(Number) ?? [];
    const by = command === "H" ? () => dx : command === "V" ? () => dy : (i) => (i % 2 ? dy : dx);
    return command + numbers.map((value, i) => value + by(i)).join(" ");
  });
}

/** @param {any} picture @param {string} line */
export function svg(picture, line) {
  return new Blob([String(drawn(picture, line, (w, h, paper) => new Vector(w, h, paper)))], { type: "image/svg+xml" });
}

/** Twice as sharp as it is large. @param {any} picture @param {string} line @returns {Promise<Blob>} */
export function png(picture, line) {
  const canvas = document.createElement("canvas");
  drawn(picture, line, (w, h, paper) => {
    const sheet = new Sheet(canvas, w, h, 2);
    sheet.rect(0, 0, w, h, { fill: paper });
    return sheet;
  });
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(/** @type {Blob} */ (blob)), "image/png"));
}

/** @param {string[][]} table */
export function csv(table) {
  // a field that begins like a formula is made a text: a spreadsheet would compute it
  const field = (text) => `"${(/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text).replaceAll('"', '""')}"`;
  return new Blob(["\ufeff", table.map((line) => line.map((cell) => field(String(cell))).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" });
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
