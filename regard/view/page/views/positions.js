// @ts-check
// What tells an attention where a token stands.

import { draw } from "../chart.js";
import { theme } from "../colour.js";
import { choice, make, number } from "../dom.js";
import { inside } from "../grid.js";
import { Sheet, pixels } from "../surface.js";

const MAP = { high: 300, left: 34, top: 20 };
const CHART = 220;

export const positions = {
  id: "positions",
  title: "Positions",
  how: [
    "An attention sees a set: order reaches it by a vector that is added to each token. Each row is such a vector, a column for each dimension. Waves are fixed: quick ones on the left, slow ones on the right; learned ones are whatever helped.",
    "Below, how alike the vectors of two positions are, by how far apart they stand. For waves it depends on the distance alone, which is why a model can learn to look “three back”.",
  ],
  legend: ["sign"],
  needs: (trace) => (trace.header.positions ? "" : "This model adds no positions: a recurrent network reads in order, and needs none."),

  mount(body, app) {
    let built = "";
    let tables = [];
    const tools = make("div", { class: "tools" });
    const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Positions; arrow keys move from position to position", "aria-describedby": "cell" });
    body.append(tools, make("div", { class: "scroll" }, canvas));
    const table = () => tables[inside(app.store.state.vectors, 0, tables.length - 1)];
    /** The place of the token that asks: the selection is one, here as elsewhere. */
    const position = () => inside(app.store.at.query, 0, table().rows - 1);
    const under = (event) => {
      const row = Math.floor(((event.offsetY - MAP.top) / MAP.high) * table().rows);
      return row >= 0 && row < table().rows ? { query: row, key: app.store.state.key } : null;
    };
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
      if (by) { event.preventDefault(); app.store.set({ query: inside(position() + by, 0, table().rows - 1) }); }
    });
    canvas.addEventListener("pointermove", (event) => app.store.point(under(event)));
    canvas.addEventListener("pointerleave", () => app.store.point(null));
    canvas.addEventListener("click", (event) => { const place = under(event); if (place) app.store.set({ query: place.query }); });

    function adopt(found) {
      built = app.trace.id;
      const waves = found[0].kind === "sinusoidal" ? [] : [{ name: "waves, to compare with", kind: "sinusoidal", rows: found[0].rows, dim: found[0].dim, table: sinusoid(found[0].rows, found[0].dim) }];
      tables = [...found, ...waves].map((each) => ({ ...each, alike: likeness(each.table), flat: each.table.flat() }));
      const named = tables.map((each, i) => /** @type {[string, string]} */ ([String(i), `${each.name} (${each.kind}, ${each.dim} wide)`]));
      tools.replaceChildren(choice("Vectors", named, "0", (to) => app.store.set({ vectors: Number(to) })));
    }

    function paint(surface, wide) {
      const colours = theme();
      const [it, at] = [table(), position()];
      const most = Math.max(...it.flat.map(Math.abs)) || 1;
      it.picture ??= {};
      const dark = document.documentElement.dataset.theme ?? "";
      it.picture[dark] ??= pixels(it.flat.map((value) => value / most), it.rows, it.dim, "signed");
      const [x, w] = [MAP.left, wide - MAP.left - 4];
      surface.text(x, 8, "dimension 0", { size: 11, fill: colours.quiet });
      surface.text(x + w, 8, `dimension ${it.dim - 1}`, { size: 11, anchor: "end", fill: colours.quiet });
      surface.image(it.picture[dark], x, MAP.top, w, MAP.high);
      const cell = MAP.high / it.rows;
      for (let row = 0; row < it.rows; row += 16) surface.text(x - 7, MAP.top + (row + 0.5) * cell, String(row), { size: 11, anchor: "end", fill: colours.quiet });
      surface.rect(x - 1, MAP.top + at * cell - 1, w + 2, cell + 2, { stroke: colours.accent, thick: 2 });
      const below = MAP.top + MAP.high + 24;
      const [one, other] = beside(wide) ? [{ x: 0, y: below, wide: wide / 2 - 8 }, { x: wide / 2 + 8, y: below, wide: wide / 2 - 8 }] : [{ x: 0, y: below, wide }, { x: 0, y: below + CHART + 16, wide }];
      draw(surface, { ...one, high: CHART }, { title: "likeness (cosine) by distance, on average", points: it.alike.mean.map((value, distance) => [distance, value]) });
      draw(surface, { ...other, high: CHART }, { title: `likeness to position ${at}`, points: it.alike.table[at].map((value, other) => [other, value]), at });
    }

    /** Whether two charts have room beside each other, titles and all. */
    const beside = (wide) => wide > 580;
    const high = () => MAP.top + MAP.high + 28 + CHART + (beside(app.room()) ? 0 : CHART + 16);
    return {
      update() {
        const found = app.wait(app.trace.positions());
        if (!found) return;
        if (built !== app.trace.id) adopt(found);
        tools.querySelector("select").value = String(tables.indexOf(table()));
        paint(new Sheet(canvas, app.room(), high()), app.room());
        app.mark("positions");
      },
      inspect(inspector) {
        if (!tables.length) return inspector.tell(["Loading …"], []);
        const [it, at] = [table(), position()];
        const near = [-8, -4, -2, -1, 1, 2, 4, 8].map((by) => at + by).filter((other) => other >= 0 && other < it.rows);
        const lines = near.map((other) => make("tr", {}, make("th", { scope: "row" }, `to position ${other}`), make("td", {}, number(it.alike.table[at][other]))));
        inspector.tell([`Position ${at}: a vector of ${it.dim} numbers, of length `, make("output", {}, number(Math.hypot(...it.table[at])))],
          [make("table", { class: "figures" }, make("caption", {}, "How alike it is"), make("tbody", {}, ...lines))]);
      },
      picture: () => ({ wide: app.room(), high: high(), paint: (surface) => paint(surface, app.room()) }),
      table: () => [["position", ...table().table[0].map((_, d) => String(d))], ...table().table.map((row, i) => [i, ...row].map(String))],
    };
  },
};

/** PE(p, 2i) = sin(p / 10000^(2i/dim)), PE(p, 2i+1) = cos(same). */
function sinusoid(rows, dim) {
  return Array.from({ length: rows }, (_, p) => Array.from({ length: dim }, (_, d) => (d % 2 ? Math.cos : Math.sin)(p / 10_000 ** ((d - (d % 2)) / dim))));
}

/** Cosines of all pairs, and their mean by distance. @param {number[][]} table */
function likeness(table) {
  const lengths = table.map((row) => Math.hypot(...row) || 1);
  const all = table.map((a, i) => table.map((b, j) => a.reduce((sum, x, d) => sum + x * b[d], 0) / (lengths[i] * lengths[j])));
  const mean = table.map((_, distance) => {
    const found = all.slice(distance).map((row, i) => row[i]);
    return found.reduce((a, b) => a + b, 0) / found.length;
  });
  return { table: all, mean };
}
