// @ts-check
// What was read against what was written, with the hard path: for each word written, the one it looked at most.

import { button, choice, make, tick } from "../dom.js";
import { Grids, exactTable, placeOf, settled, tokensAt } from "../grid.js";
import { Matrix, layOut, paint } from "../matrix.js";
import { groupOf } from "../words.js";

const MOST = 96; // pixels of a cell

export const alignment = {
  id: "alignment",
  title: "Alignment",
  how: [
    "Rows are what was written, columns what was read. The line follows the darkest cell of each row: where the model looked most while it chose that word. A line that runs to the lower right reads in order; a step back shows another order of words.",
    "Play it word by word with the space bar. With a model at hand, press f (or the button) to force the selected word to look at the selected source, and look again: if the answer stays, it did not depend on it.",
  ],
  legend: ["weight"],
  needs: (trace) => (trace.crosses.length ? "" : "This model has no attention from what it writes to what it has read; see Head."),

  mount(body, app) {
    const grids = new Grids();
    let path = true;
    let timer = 0;
    let built = "";
    const tools = make("div", { class: "tools" });
    const matrix = new Matrix(app, "Alignment; arrow keys move from cell to cell, f forces the cell", {
      pick: (place) => app.store.set(tokensAt(matrix.grid, place)),
      point: (place) => app.store.point(place && tokensAt(matrix.grid, place)),
    });
    body.append(tools, matrix.element);

    /** The attention shown: the selected one where it looks across, else the last that does. */
    const name = (state) => (app.trace.crosses.find((map) => map.name === state.name) ?? app.trace.crosses.at(-1)).name;

    function build(state, at) {
      const key = `${app.trace.id} ${at.name} ${at.head} ${state.hide} ${state.merge} ${path} ${timer}`;
      if (key === built) return;
      built = key;
      const heads = [[-1, "mean of all"], ...Array.from({ length: at.map.heads }, (_, h) => [h, `head ${h}`])];
      tools.replaceChildren(
        choice("Attention", app.trace.crosses.map((map) => [map.name, map.name]), at.name, (to) => app.store.set({ name: to })),
        choice("Head", heads.map(([value, text]) => /** @type {[string, string]} */ ([String(value), String(text)])), String(at.head), (head) => app.store.set({ head: Number(head) })),
        tick("hard path", path, (on) => { path = on; app.refresh(); }),
        tick("whole words", state.merge, (merge) => app.store.set({ merge })),
        tick("hide marks", state.hide, (hide) => app.store.set({ hide })),
        button(timer ? "Stop" : "Play", play),
        app.source.live && button("Force this cell", force, { title: "The selected word must look there when the model is asked again (f)" }),
      );
    }

    /** Word by word, from the first; each row shows its strongest cell. */
    function play() {
      clearInterval(timer);
      timer = timer ? 0 : setInterval(advance, matchMedia("(prefers-reduced-motion: reduce)").matches ? 1500 : 700);
      if (timer) go(0);
      app.refresh();
    }

    function advance() {
      const row = groupOf(matrix.grid.asks, app.store.state.query) + 1;
      if (row < matrix.grid.asks.length && app.store.state.view === "alignment") go(row);
      else { clearInterval(timer); timer = 0; app.refresh(); }
    }

    function go(row) {
      app.store.set({ ...tokensAt(matrix.grid, { row, column: Math.max(hard(matrix.grid)[row], 0) }) });
    }

    function force() {
      const at = settled(app.trace, { ...app.store.state, name: name(app.store.state) });
      app.force(at.query, at.key);
    }

    /** Cells that are forced, as places of the grid. */
    const fixed = (grid) => new Map(Object.entries(app.wish.force.look).map(([query, key]) => [groupOf(grid.asks, Number(query)), groupOf(grid.answers, Number(key))]));

    return {
      play,
      force: () => { if (app.source.live) force(); },
      update(state) {
        const at = settled(app.trace, { ...state, name: name(state) });
        build(state, at);
        app.wait(app.trace.head(at.name, at.head));
        const grid = grids.of(app.trace, at.name, at.head, { ...state, turn: false });
        if (!grid) return;
        const { query, key } = settled(app.trace, { ...state, ...app.store.at, name: at.name });
        matrix.show(grid, app.room(), placeOf(grid, query, key), { path: path ? hard(grid) : undefined, fixed: fixed(grid) }, MOST);
        app.mark("alignment");
      },
      recolour: () => matrix.forget(),
      shown: (state) => name(state),
      picture() {
        const box = layOut(matrix.grid, app.room(), MOST);
        return { ...box, paint: (surface) => paint(surface, matrix.grid, box, null, { path: path ? hard(matrix.grid) : undefined, fixed: fixed(matrix.grid) }) };
      },
      table() {
        const state = app.store.state;
        const at = settled(app.trace, { ...state, name: name(state) });
        return exactTable(app.trace, at.name, at.head, { ...state, turn: false });
      },
    };
  },
};

/** For each row the column with the most weight; -1 where it has none at all. */
export function hard(grid) {
  const wide = grid.columns.length;
  return grid.rows.map((_, r) => {
    let best = 0;
    for (let c = 1; c < wide; c++) if (grid.values[r * wide + c] > grid.values[r * wide + best]) best = c;
    return grid.values[r * wide + best] > 0 ? best : -1;
  });
}
