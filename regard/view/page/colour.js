// @ts-check
// Colours that stay apart for every kind of eye: one hue for weights, two for differences, twelve for heads.

const RAMPS = {
  light: { weight: ["#f5f6f8", "#d3deeb", "#8fb1d6", "#3b73b0", "#0a2c5c"], signed: ["#a63d05", "#e9a06c", "#f5f6f8", "#8fb1d6", "#1d5c9e"] },
  dark: { weight: ["#1c2028", "#223f5f", "#34699f", "#7eb0e2", "#eef6ff"], signed: ["#ffa76b", "#9c5423", "#1c2028", "#31608f", "#8cc2f5"] },
};

// Okabe and Ito's eight and four of Tol's, in an order in which neighbours differ
export const HEADS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#882255", "#44aa99", "#e69f00", "#332288", "#999933", "#aa4499"];

/** @param {number} head */
export const headColour = (head) => HEADS[((head % HEADS.length) + HEADS.length) % HEADS.length];

export const isDark = () => document.documentElement.dataset.theme === "dark";

/** @param {string} hex */
const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** @param {string[]} stops @param {number} share @returns {number[]} */
function between(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  const [a, b] = [parts(stops[below]), parts(stops[below + 1])];
  return a.map((x, i) => Math.round(x + (b[i] - x) * (place - below)));
}

const tables = new Map();

/** 256 colours as 32-bit pixels. @param {"weight" | "signed"} kind @returns {Uint32Array} */
export function table(kind) {
  const theme = isDark() ? "dark" : "light";
  const key = `${theme} ${kind}`;
  if (!tables.has(key))
    tables.set(key, Uint32Array.from({ length: 256 }, (_, i) => {
      const [r, g, b] = between(RAMPS[theme][kind], i / 255);
      return (255 << 24) | (b << 16) | (g << 8) | r;
    }));
  return tables.get(key);
}

/** Where on its ramp a number stands: the root of a weight, a difference from −1 to 1. @param {"weight" | "signed"} kind */
export const place = (kind, value) => (kind === "weight" ? Math.sqrt(Math.max(value, 0)) : 0.5 + 0.5 * Math.sign(value) * Math.sqrt(Math.min(Math.abs(value), 1)));

/** @param {"weight" | "signed"} kind @param {number} value */
export function css(kind, value) {
  return `rgb(${between(RAMPS[isDark() ? "dark" : "light"][kind], place(kind, value)).join(" ")})`;
}

/** The page's own colours, by their names in the style sheet. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const found = {};
  for (const name of ["paper", "card", "ink", "quiet", "line", "accent"]) found[name] = style.getPropertyValue(`--${name}`).trim();
  return /** @type {Record<"paper" | "card" | "ink" | "quiet" | "line" | "accent", string>} */ (found);
}
