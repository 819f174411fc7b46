// @ts-check
// The selected cell or head in numbers: exact, selectable, and read aloud. It is the twin of whatever is drawn.

import { headColour } from "./colour.js";
import { button, fill, make, number, readable, token } from "./dom.js";
import { settled } from "./grid.js";
import { Sheet, pixels } from "./surface.js";
import { groupOf, groups } from "./words.js";

const MOST = 10;
const PREVIEW = 216;

export class Inspector {
  /** @param {any} app @param {HTMLElement} place */
  constructor(app, place) {
    this.app = app;
    this.sentence = make("p", { id: "cell", "aria-live": "polite" });
    this.body = make("div", {});
    place.append(this.sentence, this.body);
  }

  /** @param {any} state @param {any} view */
  update(state, view) {
    if (view.inspect) return view.inspect(this);
    if (state.view === "overview") return this.head(this.app.previewed ?? settled(this.app.trace, state), view);
    return this.cell(state, view.shown?.(state) ?? state.name);
  }

  /** @param {(Node | string)[]} sentence @param {(Node | string | false | null)[]} body */
  tell(sentence, body) {
    fill(this.sentence, ...sentence);
    fill(this.body, ...body);
  }

  /** One head, larger. */
  head({ name, head }, view) {
    const { app } = this;
    const map = app.trace.map(name);
    const weights = app.wait(app.trace.head(name, head));
    const picture = make("canvas", { "aria-hidden": "true", class: "preview" });
    if (weights) {
      const [rows, columns] = map.shape;
      const scale = PREVIEW / Math.max(rows, columns);
      const wide = Math.abs(Math.log2(rows / columns)) > 1 ? [PREVIEW, PREVIEW] : [columns * scale, rows * scale];
      new Sheet(picture, wide[0], wide[1]).image(pixels(weights, rows, columns, "weight"), 0, 0, wide[0], wide[1]);
    }
    const lines = view.figures(map, head).map(([what, value, means]) => make("tr", { title: means }, make("th", { scope: "row" }, what), make("td", {}, value)));
    this.tell(
      [make("b", {}, name), `, ${which(head)}: ${map.shape[0]} × ${map.shape[1]} tokens`],
      [
        picture,
        make("table", { class: "figures" }, make("tbody", {}, ...lines)),
        make("div", { class: "actions" }, button("Open", () => app.store.set({ name, head, view: "head" })), silence(app, name, head)),
      ],
    );
  }

  /** One cell and the rest of its row. */
  cell(state, name) {
    const { app } = this;
    const { map, head, query, key } = settled(app.trace, { ...state, ...app.store.at, name });
    const [queries, keys] = [app.trace.queries(map.name), app.trace.keys(map.name)];
    const asks = groups(queries, state)[groupOf(groups(queries, state), query)];
    const columns = groups(keys, state);
    const rows = Array.from({ length: asks.to - asks.from }, (_, i) => app.wait(app.trace.row(map.name, head, asks.from + i)));
    const weights = rows.every(Boolean) ? columns.map((group) => share(rows, group)) : null;
    const here = groupOf(columns, key);
    const sentence = [
      map.queries === "source" || query < app.trace.header.given ? "While it read " : "While it wrote ", token(asks.label),
      `, ${which(head)} looked at `, token(columns[here].label), " with weight ",
      make("output", {}, weights ? number(weights[here]) : "…"),
    ];
    this.tell(sentence, [
      app.trace.header.asked.silence?.[map.name]?.includes(head) && make("p", { class: "small" }, "This head is silent: nothing of what it looks at is read."),
      weights && strongest(weights, columns, here),
      make("div", { class: "actions" },
        map.arithmetic && head >= 0 && state.view !== "arithmetic" && button("How it came about", () => app.store.set({ name: map.name, view: "arithmetic" })),
        silence(app, map.name, head),
      ),
      make("p", { class: "quiet small below" }, dot(head), ` ${map.name}`),
    ]);
  }
}

const which = (head) => (head < 0 ? "the mean of all heads" : `head ${head}`);

function dot(head) {
  const found = make("span", { class: "dot" });
  if (head >= 0) found.style.background = headColour(head);
  return found;
}

/** @param {Float32Array[]} rows */
const share = (rows, group) => rows.reduce((sum, row) => {
  let here = 0;
  for (let k = group.from; k < group.to; k++) here += row[k];
  return sum + here / rows.length;
}, 0);

/** Where this row looked most. */
function strongest(weights, columns, here) {
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, MOST);
  const lines = order.map((i) => {
    const bar = make("div", { class: "bar" });
    bar.style.width = `${Math.max(100 * weights[i], 0.5)}%`;
    return make("tr", i === here ? { class: "chosen" } : {},
      make("th", { scope: "row", dir: "auto", class: "token" }, readable(columns[i].label)), make("td", {}, number(weights[i])), make("td", { class: "bars" }, bar));
  });
  return make("table", {}, make("caption", {}, "Where this row looked most"),
    make("thead", { class: "hidden" }, make("tr", {}, make("th", { scope: "col" }, "token"), make("th", { scope: "col" }, "weight"), make("th", { scope: "col" }, "as a bar"))),
    make("tbody", {}, ...lines));
}

/** @param {any} app */
function silence(app, name, head) {
  if (!app.source.live || head < 0) return null;
  const quiet = app.silenced(name, head);
  return button(quiet ? "Let it speak" : "Silence this head", () => app.silence(name, head), { "aria-pressed": String(quiet) });
}
