// @ts-check
// d3, vendored: scales, ticks and curves. It comes as a script that leaves its name behind.

import "./vendor/d3.min.js";

/** @type {any} */
export const d3 = /** @type {any} */ (globalThis).d3;
