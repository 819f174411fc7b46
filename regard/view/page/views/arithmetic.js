// @ts-check
// One row of weights as it came about: query, keys, their scores, the mask, the softmax, and the mixture of values.

import { css, theme } from "../colour.js";
import { button, choice, fill, make, number, readable, slider, tick, token } from "../dom.js";
import { softmax } from "../data.js";
import { settled } from "../grid.js";
import { Sheet, pixels, shorten } from "../surface.js";

const STRIP = { wide: 96, high: 12 };
const MOST = 40; // keys that are listed
// the steps, and the columns with the step that fills each; a score that is no product has none of its own
const DOTS = {
  steps: ["query and keys", "q · k", "scale", "mask", "softmax", "mix the values"],
  columns: /** @type {[string, number][]} */ ([["key", 0], ["k", 0], ["q · k", 1], ["score", 2], ["seen", 3], ["weight", 4], ["", 4], ["value", 5]]),
};
const SCORED = {
  steps: ["query and keys", "score", "mask", "softmax", "mix the values"],
  columns: /** @type {[string, number][]} */ ([["key", 0], ["k", 0], ["score", 1], ["seen", 2], ["weight", 3], ["", 3], ["value", 4]]),
};

export const arithmetic = {
  id: "arithmetic",
  title: "Arithmetic",
  how: [
    "Everything that one token did: its query (a vector) is compared with the key of each token; products are scaled, what may not be seen is masked, and the softmax turns scores into weights that add up to one. What is read is the values, mixed by those weights.",
    "Blue is positive, orange negative. Step through with the buttons or the space bar; cool the temperature, or lift the mask, to see what the same scores would have given.",
  ],
  legend: ["sign"],
  needs: (trace) => (trace.maps.some((map) => map.arithmetic) ? "" : "Queries, keys and values were not kept in this trace."),

  mount(body, app) {
    let step = Infinity; // the last
    let temperature = 1;
    let masked = true;
    let shown = null;
    let built = "";
    const tools = make("div", { class: "tools" });
    const steps = make("div", { class: "steps", role: "group", "aria-label": "Steps" });
    const formula = make("p", { class: "formula" });
    const table = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The row, key by key" });
    body.append(tools, steps, formula, table);

    /** The selected head, or the first where the mean is selected: a mean has no query. */
    function at(state) {
      const kept = app.trace.maps.filter((map) => map.arithmetic);
      const name = (kept.find((map) => map.name === state.name) ?? kept.at(-1)).name;
      const found = settled(app.trace, { ...state, name });
      return { ...found, head: Math.max(found.head, 0) };
    }

    const way = () => (shown?.it.dots ? DOTS : SCORED);
    const now = () => Math.min(step, way().steps.length - 1);

    function build(here) {
      const key = `${app.trace.id} ${here.name} ${here.head} ${here.query} ${step} ${Boolean(shown)} ${way().steps.length}`;
      if (key === built) return;
      built = key;
      const queries = app.trace.queries(here.name);
      tools.replaceChildren(
        choice("Attention", app.trace.maps.filter((map) => map.arithmetic).map((map) => [map.name, map.name]), here.name, (name) => app.store.set({ name })),
        choice("Head", Array.from({ length: here.map.heads }, (_, h) => [String(h), `head ${h}`]), String(here.head), (head) => app.store.set({ head: Number(head) })),
        choice("Token that asks", queries.map((text, i) => [String(i), `${i} ${text}`]), String(here.query), (query) => app.store.set({ query: Number(query) })),
        slider("Temperature", { min: 0.1, max: 4, step: 0.1, value: temperature }, (value) => value.toFixed(1), (value) => { temperature = value; app.refresh(); }),
        tick("mask", masked, (on) => { masked = on; app.refresh(); }),
      );
      if (shown) steps.replaceChildren(...way().steps.map((text, i) => button(`${i + 1} ${text}`, () => { step = i; app.refresh(); }, { class: "chip", "aria-pressed": String(i === now()) })));
    }

    function show(here, it) {
      const keys = app.trace.keys(here.name);
      const seen = masked ? it.seen : it.seen.map(() => true);
      const plain = temperature === 1 && masked;
      const weights = plain ? it.weights : softmax(it.scores, seen, temperature);
      const mix = plain ? it.mix : it.v[0].map((_, d) => weights.reduce((sum, w, i) => sum + w * it.v[i][d], 0));
      shown = { here, it, weights, mix, seen, keys };
      const order = [...keys.keys()];
      const listed = keys.length <= MOST ? order : [...new Set([here.key, ...order.sort((a, b) => weights[b] - weights[a]).slice(0, MOST)])].sort((a, b) => a - b);
      fill(formula, ...sentence(app, here, it, plain));
      fill(table, drawn(app, shown, listed, way().columns, now(), plain), keys.length > MOST ? make("p", { class: "quiet small" }, `The ${MOST} keys with the most weight, of ${keys.length}; CSV has them all.`) : null);
    }

    return {
      update(state) {
        const here = at(state);
        const it = app.wait(app.trace.arithmetic(here.name, here.head, here.query));
        if (it) show(here, it);
        build(here);
        app.mark("arithmetic");
      },
      play() { step = (now() + 1) % way().steps.length; app.refresh(); },
      shown: (state) => at(state).name,
      inspect(inspector) {
        if (shown) dimensions(inspector, shown);
      },
      picture: () => ({ wide: 660, high: 60 + 24 * Math.min(shown.keys.length, MOST), paint: (surface) => paint(surface, shown) }),
      table() {
        const { it, keys, seen, weights, mix } = shown;
        const dots = (cell) => (it.dots ? [cell] : []);
        return [
          ["key", ...dots("q · k"), "score", "seen", "weight", ...it.k[0].map((_, d) => `k${d}`), ...it.v[0].map((_, d) => `v${d}`)],
          ...keys.map((key, i) => [key, ...dots(it.dots?.[i]), it.scores[i], seen[i], weights[i], ...it.k[i], ...it.v[i]].map(String)),
          ["mixture", ...dots(""), "", "", "", ...it.k[0].map(() => ""), ...mix.map(String)],
        ];
      },
    };
  },
};

function sentence(app, here, it, plain) {
  const score = it.dots ? `softmax( q · k × ${number(it.scale, 4)} )` : "softmax( score( q, k ) )";
  const asked = app.trace.queries(here.name)[here.query];
  const silent = app.trace.header.asked.silence?.[here.name]?.includes(here.head);
  if (silent && plain) return [token(asked), ` asks, but this head is silent: its scores are as they were, and ${score} is set to 0, so that it reads nothing.`];
  return [token(asked), ` asks: weights = ${score}, and it reads Σ weight × value`, plain ? "." : ". What if: these are not the model's own weights."];
}

/** A vector as a strip of colours. @param {number[]} vector */
function strip(vector, about) {
  const canvas = make("canvas", { role: "img", "aria-label": about });
  const most = Math.max(...vector.map(Math.abs)) || 1;
  new Sheet(canvas, STRIP.wide, STRIP.high).image(pixels(vector.map((x) => x / most), 1, vector.length, "signed"), 0, 0, STRIP.wide, STRIP.high);
  return canvas;
}

function drawn(app, { here, it, weights, mix, seen, keys }, listed, columns, step, plain) {
  const shade = (column) => { const from = columns.at(column)[1]; return from > step ? "later" : from === step && step > 0 ? "now" : ""; };
  const head = columns.map(([text], i) => make("th", { scope: "col", class: shade(i) }, text || make("span", { class: "hidden" }, "as a bar")));
  const lines = listed.map((i) => {
    const bar = make("div", { class: "bar" });
    bar.style.width = `${Math.max(100 * weights[i], 1)}px`;
    const cells = [
      strip(it.k[i], `key of ${readable(keys[i])}`), ...(it.dots ? [number(it.dots[i])] : []), number(it.scores[i]), seen[i] ? "yes" : "no", number(weights[i]), bar, strip(it.v[i], `value of ${readable(keys[i])}`),
    ];
    const open = button(readable(keys[i]), () => app.store.set({ key: i, name: here.name, head: here.head }), { class: "plain token", dir: "auto" });
    return make("tr", i === here.key ? { class: "chosen" } : {}, make("th", { scope: "row" }, open), ...cells.map((cell, c) => make("td", { class: `${c && typeof cell === "string" ? "figure" : ""} ${shade(c + 1)}` }, cell)));
  });
  const foot = make("tr", {}, make("th", { scope: "row" }, "query q"), make("td", {}, strip(it.q, "the query")), ...columns.slice(2, -3).map(() => make("td", {})),
    make("td", { class: `figure ${shade(-3)}` }, number(weights.reduce((a, b) => a + b, 0))), make("td", { class: `quiet ${shade(-2)}` }, plain ? "in all" : "what if"), make("td", { class: shade(-1) }, strip(mix, "the mixture that was read")));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines), make("tfoot", {}, foot));
}

/** The product with one key, number by number. */
function dimensions(inspector, { here, it, weights, mix, keys }) {
  const i = Math.min(here.key, keys.length - 1);
  const parts = it.q.map((x, d) => ({ d, q: x, k: it.k[i][d], product: x * it.k[i][d] }));
  const line = (cells, kind) => make("tr", {}, ...cells.map((text, c) => make(c ? "td" : kind, c ? { class: "figure" } : { scope: kind === "th" ? "row" : "col" }, text)));
  const head = make("tr", {}, ...["", "q", "k", ...(it.dots ? ["q × k"] : [])].map((text) => make("th", { scope: "col", class: "figure" }, text || make("span", { class: "hidden" }, "dimension"))));
  const rows = parts.map(({ d, q, k, product }) => line([String(d), number(q), number(k), ...(it.dots ? [number(product)] : [])], "th"));
  inspector.tell(
    ["The score of ", token(keys[i]), " is ", make("output", {}, number(it.scores[i])), ` and its weight ${number(weights[i])}`],
    [
      make("details", { open: parts.length <= 32 }, make("summary", {}, `${parts.length} dimensions`), make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The product, number by number" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)))),
      make("details", {}, make("summary", {}, "What was read"), make("p", { class: "small vector" }, mix.map((x) => number(x)).join("  "))),
    ],
  );
}

function paint(surface, { it, weights, seen, keys }) {
  const colours = theme();
  const columns = [["key", 0], ["k", 130], ...(it.dots ? [["q · k", 300]] : []), ["score", 370], ["seen", 430], ["weight", 500], ["value", 550]];
  for (const [text, x] of columns) surface.text(Number(x), 8, String(text), { size: 12, fill: colours.quiet });
  const most = (vector) => Math.max(...vector.map(Math.abs)) || 1;
  keys.slice(0, MOST).forEach((key, i) => {
    const y = 34 + i * 24;
    surface.text(0, y, shorten(key, 13, 120), { fill: colours.ink });
    surface.image(pixels(it.k[i].map((x) => x / most(it.k[i])), 1, it.k[i].length, "signed"), 130, y - 6, STRIP.wide, STRIP.high);
    [it.dots ? number(it.dots[i]) : "", number(it.scores[i])].forEach((text, c) => surface.text(340 + 70 * c, y, text, { anchor: "end", fill: colours.ink }));
    surface.text(430, y, seen[i] ? "yes" : "no", { fill: colours.ink });
    surface.rect(470, y - 8, 70, 16, { fill: css("weight", weights[i]), round: 3 });
    surface.text(536, y, number(weights[i]), { anchor: "end", size: 11, fill: Math.sqrt(weights[i]) > 0.6 ? colours.paper : colours.ink });
    surface.image(pixels(it.v[i].map((x) => x / most(it.v[i])), 1, it.v[i].length, "signed"), 550, y - 6, STRIP.wide, STRIP.high);
  });
}
