// @ts-check
// Two maps side by side, of two answers, attentions or heads, and their difference.

import { choice, make, number, token } from "../dom.js";
import { Matrix, layOut, paint } from "../matrix.js";

export const compare = {
  id: "compare",
  title: "Compare",
  how: [
    "Two maps and what changed between them: blue where the second looks more, orange where it looks less. Ask again with a head silenced, another beam or another text, and the answer before is on the left; or choose two heads of one answer.",
    "Where the answers have different words, those that both have are compared.",
  ],

  mount(body, app) {
    const side = { a: { trace: "", name: "", head: -1 }, b: { trace: "", name: "", head: -1 } };
    let at = { row: 0, column: 0 };
    let shown = null;
    let built = "";
    const tools = { a: make("div", { class: "tools" }), b: make("div", { class: "tools" }) };
    const hands = { pick: (to) => { at = to; app.refresh(); }, point: (to) => { if (to) { at = to; app.refresh(); } } };
    const maps = { a: new Matrix(app, "First map", hands), b: new Matrix(app, "Second map", hands), c: new Matrix(app, "Second less first", hands) };
    const column = (title, ...inside) => make("div", {}, make("h2", {}, title), ...inside);
    body.append(make("div", { class: "twice" }, column("First", tools.a, maps.a.element), column("Second", tools.b, maps.b.element)), column("Second − first", maps.c.element));

    /** By default the trace before and this one; with no other, two heads of this. */
    function traces() {
      const both = app.base ? [app.base, app.trace] : [app.trace];
      return new Map(both.map((trace) => [trace.id, trace]));
    }

    function build(state) {
      const known = traces();
      const key = `${[...known.keys()].join(" ")} ${state.name} ${state.head}`;
      if (key === built) return;
      built = key;
      const name = app.trace.map(state.name).name;
      Object.assign(side.b, { trace: app.trace.id, name, head: Math.min(state.head, app.trace.map(name).heads - 1) });
      const alone = !app.base;
      const other = alone ? (side.b.head < 0 ? 0 : -1) : side.b.head;
      Object.assign(side.a, { trace: app.base?.id ?? app.trace.id, name: (app.base ?? app.trace).map(name).name, head: other });
      controls();
    }

    function controls() {
      const known = traces();
      for (const which of /** @type {("a" | "b")[]} */ (["a", "b"])) {
        const it = side[which];
        const trace = known.get(it.trace) ?? app.trace;
        const change = (what) => { Object.assign(it, what); it.head = Math.min(it.head, (known.get(it.trace) ?? trace).map(it.name).heads - 1); shown = null; controls(); app.refresh(); };
        const heads = [-1, ...Array.from({ length: trace.map(it.name).heads }, (_, h) => h)];
        tools[which].replaceChildren(
          ...(known.size > 1 ? [choice("Answer", [...known.values()].map((each) => [each.id, each === app.trace ? "now" : "before"]), it.trace, (id) => change({ trace: id }))] : []),
          choice("Attention", trace.maps.map((map) => [map.name, map.name]), it.name, (name) => change({ name })),
          choice("Head", heads.map((h) => [String(h), h < 0 ? "mean of all" : `head ${h}`]), String(it.head), (head) => change({ head: Number(head) })),
        );
      }
      shown = null;
    }

    function grid(it) {
      const trace = traces().get(it.trace) ?? app.trace;
      const weights = app.wait(trace.head(it.name, it.head));
      return weights && { rows: trace.queries(it.name), columns: trace.keys(it.name), values: weights };
    }

    return {
      update(state) {
        build(state);
        const [a, b] = [grid(side.a), grid(side.b)];
        if (!a || !b) return;
        shown ??= { a, b, c: difference(a, b) };
        const room = app.room() > 560 ? app.room() / 2 - 16 : app.room();
        const inside = (one) => ({ row: Math.min(at.row, one.rows.length - 1), column: Math.min(at.column, one.columns.length - 1) });
        for (const [which, wide] of [["a", room], ["b", room], ["c", app.room()]]) maps[which].show(shown[which], wide, inside(shown[which]), {}, 30);
        app.mark("compare");
      },
      recolour: () => Object.values(maps).forEach((map) => map.forget()),
      inspect(inspector) {
        const both = shown?.c;
        if (!both?.rows.length) return inspector.tell(["The two have no words in common."], []);
        const [row, column] = [Math.min(at.row, both.rows.length - 1), Math.min(at.column, both.columns.length - 1)];
        const exact = ["a", "b"].map((which) => {
          const it = side[which];
          const line = app.wait((traces().get(it.trace) ?? app.trace).row(it.name, it.head, both.from[which].rows[row]));
          return line ? line[both.from[which].columns[column]] : NaN;
        });
        const lines = [["first", exact[0]], ["second", exact[1]]].map(([what, value]) => make("tr", {}, make("th", { scope: "row" }, what), make("td", {}, number(Number(value)))));
        inspector.tell(
          [token(both.rows[row]), " looks at ", token(both.columns[column]), " with a weight that changed by ", make("output", {}, number(exact[1] - exact[0]))],
          [make("table", { class: "figures" }, make("tbody", {}, ...lines)), make("p", { class: "quiet small" }, `${number(moved(both), 3)} of a row's weight moved, on average.`)],
        );
      },
      picture() {
        const box = layOut(shown.c, app.room(), 34);
        return { ...box, paint: (surface) => paint(surface, shown.c, box, null) };
      },
      table: () => [["", ...shown.c.columns], ...shown.c.rows.map((label, r) => [label, ...shown.c.columns.map((_, c) => String(Number(shown.c.values[r * shown.c.columns.length + c].toPrecision(4))))])],
    };
  },
};

/** Second less first, for the tokens that both have, in their order. */
function difference(a, b) {
  const [rows, columns] = [shared(a.rows, b.rows), shared(a.columns, b.columns)];
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach(([ra, rb], r) => columns.forEach(([ca, cb], c) => {
    values[r * columns.length + c] = b.values[rb * b.columns.length + cb] - a.values[ra * a.columns.length + ca];
  }));
  const from = { a: { rows: rows.map(([i]) => i), columns: columns.map(([i]) => i) }, b: { rows: rows.map(([, i]) => i), columns: columns.map(([, i]) => i) } };
  return { rows: rows.map(([i]) => a.rows[i]), columns: columns.map(([i]) => a.columns[i]), values, kind: "signed", from };
}

/** Half of the weight that changed, a row on average: how much lies elsewhere. */
const moved = (grid) => grid.values.reduce((sum, x) => sum + Math.abs(x), 0) / 2 / Math.max(grid.rows.length, 1);

/** The longest common subsequence, as pairs of places; long lists are paired place by place. @returns {[number, number][]} */
export function shared(a, b) {
  if (a.length === b.length && a.every((x, i) => x === b[i])) return a.map((_, i) => [i, i]);
  if (a.length * b.length > 1_000_000) return a.slice(0, Math.min(a.length, b.length)).map((_, i) => [i, i]);
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  /** @type {[number, number][]} */
  const pairs = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return pairs;
}
