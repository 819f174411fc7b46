// @ts-check
// The selected attention as a grid of tokens or words, and the way from a place in it to a place in the trace.

import { MEAN } from "./data.js";
import { groups, groupOf, gather } from "./words.js";

/** A whole number from `low` to `high`. @param {number} place */
export const inside = (place, low, high) => Math.min(Math.max(Math.round(place) || 0, low), high);

/** Where the selection stands in an attention; whatever a URL said, it is inside. @param {any} trace @param {any} state */
export function settled(trace, state) {
  const map = trace.map(state.name);
  const [queries, keys] = map.shape;
  return { name: map.name, map, head: inside(state.head, MEAN, map.heads - 1), query: inside(state.query, 0, queries - 1), key: inside(state.key, 0, keys - 1) };
}

export class Grids {
  constructor() {
    this.last = "";
    this.grid = null;
  }

  /**
   * The weights of a head between what is shown of its tokens; null while they are on their way.
   * @param {any} trace @param {string} name @param {number} head @param {any} state
   */
  of(trace, name, head, state) {
    const key = [trace.id, name, head, state.hide, state.merge, state.turn].join(" ");
    if (key === this.last && this.grid) return this.grid;
    const weights = trace.head(name, head);
    if (weights instanceof Promise) return null;
    const rows = groups(trace.queries(name), state);
    const columns = groups(trace.keys(name), state);
    const plain = !state.hide && !state.merge;
    let values = plain ? weights : gather(weights, trace.keys(name).length, rows, columns);
    if (state.turn) values = transposed(values, rows.length, columns.length);
    const labels = [rows, columns].map((all) => all.map((group) => group.label));
    const [down, across] = state.turn ? [labels[1], labels[0]] : labels;
    this.last = key;
    this.grid = { rows: down, columns: across, values, asks: rows, answers: columns, turn: state.turn };
    return this.grid;
  }
}

/**
 * The same weights exactly, and as many digits as they have: a grid as rows of text, to be saved.
 * @param {any} trace @param {string} name @param {number} head @param {any} state
 */
export async function exactTable(trace, name, head, state) {
  const [rows, columns] = [groups(trace.queries(name), state), groups(trace.keys(name), state)];
  const weights = await trace.exact(name, head);
  const values = gather(weights, trace.keys(name).length, rows, columns);
  const lines = rows.map((row, r) => [row.label, ...columns.map((_, c) => digits(values[r * columns.length + c]))]);
  const table = [["", ...columns.map((column) => column.label)], ...lines];
  return state.turn ? table[0].map((_, c) => table.map((line) => line[c])) : table;
}

/** All that a 32-bit number has to tell. @param {number} value */
export const digits = (value) => String(Number(value.toPrecision(9)));

/** @param {ArrayLike<number>} values */
function transposed(values, rows, columns) {
  const found = new Float32Array(values.length);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) found[c * rows + r] = values[r * columns + c];
  return found;
}

/** The grid's place of a query and a key. @param {any} grid */
export function placeOf(grid, query, key) {
  const row = groupOf(grid.asks, query);
  const column = groupOf(grid.answers, key);
  return grid.turn ? { row: column, column: row } : { row, column };
}

/** The query and the key at a place of the grid. @param {any} grid @param {{row: number, column: number}} place */
export function tokensAt(grid, place) {
  const [row, column] = grid.turn ? [place.column, place.row] : [place.row, place.column];
  return { query: grid.asks[row].from, key: grid.answers[column].from };
}
