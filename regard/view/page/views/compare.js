// @ts-check
// Two maps side by side, of two runs, texts, answers or heads, and their difference.

import { theme } from "../colour.js";
import { choice, make, number, readable, token } from "../dom.js";
import { digits, settled } from "../grid.js";
import { Matrix, layOut, paint } from "../matrix.js";
import { SAME } from "../store.js";

const MOST = 44; // pixels of a cell
const TITLE = 24;

export const compare = {
  id: "compare",
  title: "Compare",
  how: [
    "Two maps and what changed between them: blue where the second looks more, orange where it looks less. Ask again with a head silenced, another beam, another text or another model, and the answer before is on the left; or choose two heads of one answer.",
    "Where the two have different tokens, those that both have are compared.",
  ],
  legend: ["weight", "change"],

  mount(body, app) {
    let shown = null; // both maps and their difference
    let owner = "";
    let built = "";
    const titles = { a: make("h2", { dir: "auto" }), b: make("h2", { dir: "auto" }), c: make("h2", {}) };
    const tools = { a: make("div", { class: "tools" }), b: make("div", { class: "tools" }) };
    const hands = (which) => ({
      pick: (place) => app.store.set(partner(which, place) ?? {}),
      point: (place) => app.store.point(place && partner(which, place)),
    });
    const maps = { a: new Matrix(app, "First map", hands("a")), b: new Matrix(app, "Second map", hands("b")), c: new Matrix(app, "Second less first", hands("c")) };
    const apart = make("p", { class: "quiet small" });
    const third = make("div", {}, titles.c, apart, maps.c.element);
    const against = make("div", { class: "tools" });
    body.append(against, make("div", { class: "twice" }, make("div", {}, titles.a, tools.a, maps.a.element), make("div", {}, titles.b, tools.b, maps.b.element)), third);

    /** On the right what is selected; on the left the answer before, or another head of this one. */
    function sides(state) {
      const { name, head } = settled(app.trace, state);
      const other = app.base && !state.alone ? app.base : app.trace;
      const same = other === app.trace ? (head < 0 ? 0 : -1) : head;
      const left = settled(other, { ...state, name: state.left || name, head: state.leftHead === SAME ? same : state.leftHead });
      return { a: { trace: other, name: left.name, head: left.head }, b: { trace: app.trace, name, head } };
    }

    function build(state, { a, b }) {
      const key = [a.trace.id, a.name, a.head, b.trace.id, b.name, b.head, app.base?.id].join(" ");
      if (key === built) return;
      built = key;
      const [first, second] = called(a.trace, b.trace);
      const heads = (it) => [-1, ...Array.from({ length: it.trace.map(it.name).heads }, (_, h) => h)].map((h) => /** @type {[string, string]} */ ([String(h), h < 0 ? "mean of all" : `head ${h}`]));
      const attentions = (it) => it.trace.maps.map((map) => [map.name, map.name]);
      titles.a.textContent = `First: ${first}`;
      titles.b.textContent = `Second: ${second}`;
      titles.c.textContent = "Second − first";
      const others = /** @type {[string, string][]} */ ([["", app.base ? called(app.base, app.trace)[0] : ""], ["1", "another head of this answer"]]);
      against.replaceChildren(...(app.base ? [choice("Compare with", others, state.alone ? "1" : "", (to) => app.store.set({ alone: Boolean(to), left: "", leftHead: SAME }))] : []));
      tools.a.replaceChildren(
        choice("Attention", attentions(a), a.name, (left) => app.store.set({ left })),
        choice("Head", heads(a), String(a.head), (head) => app.store.set({ leftHead: Number(head) })),
      );
      tools.b.replaceChildren(
        choice("Attention", attentions(b), b.name, (name) => app.store.set({ name })),
        choice("Head", heads(b), String(b.head), (head) => app.store.set({ head: Number(head) })),
      );
    }

    function grid(it) {
      const weights = app.wait(it.trace.head(it.name, it.head));
      return weights && { rows: it.trace.queries(it.name), columns: it.trace.keys(it.name), values: weights };
    }

    /** Where the selection, which is of the second map, stands in each. */
    function places({ query, key }) {
      const find = (pairs, place) => pairs.findIndex((pair) => pair[1] === place);
      const { rows, columns } = shown.c.pairs;
      const [row, column] = [find(rows, query), find(columns, key)];
      const both = row >= 0 && column >= 0;
      return { a: both ? { row: rows[row][0], column: columns[column][0] } : null, b: { row: query, column: key }, c: both ? { row, column } : null };
    }

    /** The query and the key of the second map that a place in one of the three stands for; else the next that both have. */
    function partner(which, place) {
      if (which === "b") return { query: place.row, key: place.column };
      const { rows, columns } = shown.c.pairs;
      if (which === "c") return { query: rows[place.row][1], key: columns[place.column][1] };
      const now = places(settled(app.trace, app.store.state)).a ?? { row: 0, column: 0 };
      const next = (pairs, from, to) => (to >= from ? pairs.find((pair) => pair[0] >= to) : pairs.findLast((pair) => pair[0] <= to));
      const [row, column] = [next(rows, now.row, place.row), next(columns, now.column, place.column)];
      return row && column ? { query: row[1], key: column[1] } : null;
    }

    /** How many tokens the two share, where they are not the same. */
    function different({ a, b, c }) {
      if (a.rows.length === b.rows.length && b.rows.length === c.rows.length && a.columns.length === b.columns.length && b.columns.length === c.columns.length) return "";
      if (!c.rows.length || !c.columns.length) return "The two have no tokens in common, so there is no difference to show.";
      const sizes = [a, b].map((one) => `${one.rows.length} × ${one.columns.length}`);
      return `The first has ${sizes[0]} tokens, the second ${sizes[1]}; this is of the ${c.rows.length} × ${c.columns.length} that both have, in their order.`;
    }

    return {
      update(state) {
        const both = sides(state);
        build(state, both);
        const [a, b] = [grid(both.a), grid(both.b)];
        if (!a || !b) return;
        if (owner !== built) { owner = built; shown = { a, b, c: difference(a, b), sides: both }; }
        const room = app.room() > 560 ? app.room() / 2 - 16 : app.room();
        const at = places(settled(app.trace, { ...state, ...app.store.at }));
        apart.textContent = different(shown);
        apart.hidden = !apart.textContent;
        maps.c.element.hidden = !(shown.c.rows.length && shown.c.columns.length);
        for (const [which, wide] of [["a", room], ["b", room], ["c", app.room()]])
          if (!maps[which].element.hidden) maps[which].show(shown[which], wide, at[which], {}, MOST);
        app.mark("compare");
      },
      recolour: () => Object.values(maps).forEach((map) => map.forget()),
      inspect(inspector) {
        if (!shown) return inspector.tell(["Comparing …"], []);
        const { query, key } = settled(app.trace, { ...app.store.state, ...app.store.at });
        const at = places({ query, key });
        const line = (which) => app.wait(shown.sides[which].trace.row(shown.sides[which].name, shown.sides[which].head, at[which].row)) ?? null;
        const [first, second] = [at.a && line("a"), line("b")];
        const [before, now] = [first ? first[at.a.column] : NaN, second ? second[key] : NaN];
        const lines = [["first", before], ["second", now]].map(([what, value]) => make("tr", {}, make("th", { scope: "row" }, what), make("td", {}, number(Number(value)))));
        const looks = [token(shown.b.rows[query]), " looks at ", token(shown.b.columns[key])];
        inspector.tell(
          at.a ? [...looks, " with a weight that changed by ", make("output", {}, number(now - before))] : [...looks, ", which only the second has, with weight ", make("output", {}, number(now))],
          [make("table", { class: "figures" }, make("tbody", {}, ...lines)), first && second && make("p", { class: "quiet small" }, `${number(moved(first, second, shown.c.pairs.columns))} of this row's weight moved.`)],
        );
      },
      /** All three, each below its title. */
      picture() {
        const half = Math.max(app.room() / 2 - 16, 260);
        const [a, b, c] = [layOut(shown.a, half, MOST), layOut(shown.b, half, MOST), layOut(shown.c, 2 * half, MOST)];
        const below = TITLE + Math.max(a.high, b.high) + TITLE;
        const put = (surface, which, box, x, y) => {
          surface.text(x, y + 8, titles[which].textContent, { fill: theme().ink, weight: 600 });
          paint(surface, shown[which], { ...box, left: box.left + x, top: box.top + y + TITLE }, null);
        };
        return {
          wide: 2 * half + 32, high: below + (maps.c.element.hidden ? 0 : TITLE + c.high),
          paint(surface) {
            put(surface, "a", a, 0, 0);
            put(surface, "b", b, half + 32, 0);
            if (!maps.c.element.hidden) put(surface, "c", c, 0, below);
          },
        };
      },
      async table() {
        const [a, b] = await Promise.all(["a", "b"].map((which) => shown.sides[which].trace.exact(shown.sides[which].name, shown.sides[which].head)));
        const { rows, columns, values } = difference({ ...shown.a, values: a }, { ...shown.b, values: b });
        return [["", ...columns], ...rows.map((label, r) => [label, ...columns.map((_, c) => digits(values[r * columns.length + c]))])];
      },
    };
  },
};

/** What tells two answers apart: their runs, their texts, or which came first. @returns {[string, string]} */
function called(a, b) {
  if (a === b) return ["this answer", "this answer"];
  const names = [a, b].map(({ header }) => [header.name || header.title, header.asked.text ?? ""]);
  const told = [0, 1].filter((part) => names[0][part] !== names[1][part]);
  if (!told.length) return ["the answer before", "the answer now"];
  return /** @type {[string, string]} */ (names.map((name) => told.map((part) => brief(name[part])).join(": ")));
}

/** @param {string} text */
const brief = (text) => (text.length > 28 ? `${readable(text.slice(0, 27))}…` : readable(text));

/** Second less first, for the tokens that both have, in their order. */
function difference(a, b) {
  const [rows, columns] = [shared(a.rows, b.rows), shared(a.columns, b.columns)];
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach(([ra, rb], r) => columns.forEach(([ca, cb], c) => {
    values[r * columns.length + c] = b.values[rb * b.columns.length + cb] - a.values[ra * a.columns.length + ca];
  }));
  return { rows: rows.map(([i]) => a.rows[i]), columns: columns.map(([i]) => a.columns[i]), values, kind: "signed", pairs: { rows, columns } };
}

/** Half of what changed in a row: how much of it lies elsewhere now. @param {Float32Array} first @param {Float32Array} second */
const moved = (first, second, pairs) => pairs.reduce((sum, [a, b]) => sum + Math.abs(second[b] - first[a]), 0) / 2;

/** The longest common subsequence, as pairs of places; long lists are paired place by place. @returns {[number, number][]} */
export function shared(a, b) {
  if (a.length === b.length && a.every((x, i) => x === b[i])) return a.map((_, i) => [i, i]);
  if (a.length * b.length > 1_000_000) return a.flatMap((x, i) => (x === b[i] ? [/** @type {[number, number]} */ ([i, i])] : []));
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
