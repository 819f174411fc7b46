// @ts-check
// From tokens to what a reader wants to see: marks left out, pieces put together to words.

const MARK = /^(<[^<>\s]+>|\[[A-Z]+\])$/;
const BEGINS = /^[▁Ġ ]/; // a piece that begins a word, in two ways of writing
const GOES_ON = /^##/;

/** @param {string} token */
export const isMark = (token) => MARK.test(token);

/** @typedef {{label: string, from: number, to: number}} Group  tokens from … to - 1 */

/**
 * Tokens, or words, that are shown. @param {string[]} tokens @param {{hide: boolean, merge: boolean}} how @returns {Group[]}
 */
export function groups(tokens, { hide, merge }) {
  /** @type {Group[]} */
  const found = [];
  const marked = merge && tokens.some((token) => BEGINS.test(token) || GOES_ON.test(token));
  const starts = tokens.some((token) => GOES_ON.test(token)) ? (token) => !GOES_ON.test(token) : (token) => BEGINS.test(token);
  tokens.forEach((token, i) => {
    const alone = !marked || isMark(token) || starts(token) || !found.length || isMark(tokens[i - 1]);
    if (alone) found.push({ label: token, from: i, to: i + 1 });
    else Object.assign(found[found.length - 1], { label: found[found.length - 1].label + token.replace(GOES_ON, ""), to: i + 1 });
  });
  if (marked) for (const group of found) group.label = group.label.replace(BEGINS, "") || group.label;
  const shown = hide ? found.filter((group) => group.to - group.from > 1 || !isMark(tokens[group.from])) : found;
  return shown.length ? shown : found;
}

/** Which group a token is in, or the nearest. @param {Group[]} all @param {number} place */
export function groupOf(all, place) {
  const found = all.findIndex((group) => place < group.to);
  return found < 0 ? all.length - 1 : found;
}

/**
 * Weights between groups: the mean over the pieces that ask, the sum over those that are looked at.
 * @param {Float32Array} weights @param {number} keys @param {Group[]} rows @param {Group[]} columns
 */
export function gather(weights, keys, rows, columns) {
  const found = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => {
    for (let q = row.from; q < row.to; q++)
      columns.forEach((column, c) => {
        for (let k = column.from; k < column.to; k++)
          found[r * columns.length + c] += weights[q * keys + k] / (row.to - row.from);
      });
  });
  return found;
}

/** A token without the sign that it begins a word, as text to read. @param {string[]} tokens */
export function sentence(tokens) {
  const pieces = tokens.some((token) => BEGINS.test(token));
  const text = pieces ? tokens.join("").replace(/[▁Ġ]/g, " ") : tokens.join(" ").replace(/ ##/g, "");
  return text.trim();
}
