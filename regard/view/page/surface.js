// @ts-check
// Two things to draw on with the same pencils: a canvas for the eye, and SVG for papers and slides.

import { place, table } from "./colour.js";
import { readable } from "./dom.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif";

const ruler = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));

/** @type {Map<string, number>} */
const measured = new Map();

/** @param {string} text @param {number} size @param {string | number} [weight] */
export function width(text, size, weight = "normal") {
  const key = `${weight} ${size} ${text}`;
  let found = measured.get(key);
  if (found === undefined) {
    if (measured.size > 20_000) measured.clear();
    ruler.font = `${weight} ${size}px ${FONT}`;
    found = ruler.measureText(text).width;
    measured.set(key, found);
  }
  return found;
}

/**
 * The text, or as much of its beginning as there is room for.
 * @param {string} text @param {number} size @param {number} room @param {string | number} [weight]
 */
export function shorten(text, size, room, weight = "normal") {
  const shown = readable(text);
  if (width(shown, size, weight) <= room) return shown;
  const letters = [...shown];
  while (letters.length && width(`${letters.join("")}…`, size, weight) > room) letters.pop();
  return `${letters.join("")}…`;
}

/** A picture with a pixel to each number. @param {ArrayLike<number>} values @param {"weight" | "signed"} kind */
export function pixels(values, rows, columns, kind) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = brush.createImageData(columns, rows);
  const words = new Uint32Array(image.data.buffer);
  const colours = table(kind);
  for (let i = 0; i < words.length; i++) words[i] = colours[Math.round(255 * place(kind, values[i]))];
  brush.putImageData(image, 0, 0);
  return canvas;
}

export class Sheet {
  /** @param {HTMLCanvasElement} canvas @param {number} wide @param {number} high @param {number} [sharp] */
  constructor(canvas, wide, high, sharp = Math.min(window.devicePixelRatio || 1, 3)) {
    if (canvas.width !== Math.round(wide * sharp) || canvas.height !== Math.round(high * sharp)) {
      canvas.width = Math.round(wide * sharp);
      canvas.height = Math.round(high * sharp);
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
    }
    this.brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.brush.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.brush.clearRect(0, 0, wide, high);
  }

  rect(x, y, w, h, { fill = "", stroke = "", thick = 1, round = 0 } = {}) {
    this.brush.beginPath();
    this.brush.roundRect(x, y, w, h, round);
    this.ink(fill, stroke, thick);
  }

  /** @param {string} d as in SVG */
  path(d, { fill = "", stroke = "", thick = 1, alpha = 1, dash = [] } = {}) {
    const shape = new Path2D(d);
    this.brush.globalAlpha = alpha;
    this.brush.setLineDash(dash);
    if (fill) { this.brush.fillStyle = fill; this.brush.fill(shape); }
    if (stroke) { this.brush.strokeStyle = stroke; this.brush.lineWidth = thick; this.brush.stroke(shape); }
    this.brush.globalAlpha = 1;
    this.brush.setLineDash([]);
  }

  ink(fill, stroke, thick) {
    if (fill) { this.brush.fillStyle = fill; this.brush.fill(); }
    if (stroke) { this.brush.strokeStyle = stroke; this.brush.lineWidth = thick; this.brush.stroke(); }
  }

  text(x, y, text, { fill = "#000", size = 13, anchor = "start", turn = 0, weight = "normal" } = {}) {
    const brush = this.brush;
    brush.save();
    brush.translate(x, y);
    brush.rotate((turn * Math.PI) / 180);
    brush.font = `${weight} ${size}px ${FONT}`;
    brush.fillStyle = fill;
    brush.textAlign = /** @type {CanvasTextAlign} */ ({ start: "left", middle: "center", end: "right" }[anchor]);
    brush.textBaseline = "middle";
    brush.fillText(text, 0, 0);
    brush.restore();
  }

  /** @param {HTMLCanvasElement} picture */
  image(picture, x, y, w, h) {
    this.brush.imageSmoothingEnabled = false;
    this.brush.drawImage(picture, x, y, w, h);
  }
}

const SVG = "http://www.w3.org/2000/svg";

export class Vector {
  constructor(wide, high, paper) {
    this.root = document.createElementNS(SVG, "svg");
    this.put(this.root, { xmlns: SVG, width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, "font-family": FONT });
    this.rect(0, 0, wide, high, { fill: paper });
  }

  put(element, about) {
    for (const [name, value] of Object.entries(about)) if (value !== "") element.setAttribute(name, String(value));
    return element;
  }

  add(kind, about) {
    const element = this.put(document.createElementNS(SVG, kind), about);
    this.root.append(element);
    return element;
  }

  rect(x, y, w, h, { fill = "", stroke = "", thick = 1, round = 0 } = {}) {
    this.add("rect", { x, y, width: w, height: h, rx: round, fill: fill || "none", stroke, "stroke-width": stroke ? thick : "" });
  }

  path(d, { fill = "", stroke = "", thick = 1, alpha = 1, dash = [] } = {}) {
    this.add("path", { d, fill: fill || "none", stroke, "stroke-width": thick, opacity: alpha, "stroke-dasharray": dash.join(" ") });
  }

  text(x, y, text, { fill = "#000", size = 13, anchor = "start", turn = 0, weight = "normal" } = {}) {
    const about = { x, y, fill, "font-size": size, "text-anchor": anchor, "dominant-baseline": "central", "font-weight": weight };
    this.add("text", { ...about, transform: turn ? `rotate(${turn} ${x} ${y})` : "" }).textContent = text;
  }

  image(picture, x, y, w, h) {
    this.add("image", { x, y, width: w, height: h, href: picture.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" });
  }

  toString() {
    return new XMLSerializer().serializeToString(this.root);
  }
}
