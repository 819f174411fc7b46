// @ts-check
// One head, or some: links from the token that asks to those it looks at, and the same as a matrix.

import { headColour, theme } from "../colour.js";
import { button, choice, clamp, make, readable, slider, tick } from "../dom.js";
import { Grids, exactTable, placeOf, settled, tokensAt } from "../grid.js";
import { Matrix, layOut, paint as paintMatrix } from "../matrix.js";
import { Sheet, shorten, width } from "../surface.js";
import { groups, groupOf } from "../words.js";

const LINE = 26; // pixels to a token of the links
const WINDOW = 40; // tokens of a side that are shown at once
const MOST = 64; // pixels of a cell
const FAINT = 1600; // cells up to which the links of all tokens are drawn

export const head = {
  id: "head",
  title: "Head",
  how: [
    "Left: the token that asks, right: what it may look at. The wider and darker a link, the more weight; the weights of one token add up to one. The matrix shows all tokens at once, a row for each that asks.",
    "Point at a token or a cell; arrow keys walk. [ and ] change the head, { and } the attention. Click several heads to lay their links over each other, each in its own colour.",
  ],
  legend: ["weight"],

  mount(body, app) {
    const grids = new Grids();
    const links = make("canvas", { tabindex: "0", role: "application", "aria-label": "Links of the selected token; arrow keys move between tokens", "aria-describedby": "cell" });
    const tools = make("div", { class: "tools" });
    const chips = make("div", { class: "chips", role: "group", "aria-label": "Heads" });
    const pick = (place) => app.store.set(tokensAt(matrix.grid, place));
    const matrix = new Matrix(app, "Attention matrix; arrow keys move from cell to cell", {
      pick, point: (place) => app.store.point(place && tokensAt(matrix.grid, place)),
    });
    const both = make("div", { class: "pair" }, make("div", { class: "scroll" }, links), matrix.element);
    body.append(tools, chips, both);
    let shape = null; // of the links
    let built = "";

    /** Controls are made anew only where the trace or the attention is another. */
    function build(trace, at, state) {
      const key = `${trace.id} ${at.name} ${at.head} ${state.heads} ${state.hide} ${state.merge} ${state.turn}`;
      if (key === built) return;
      built = key;
      tools.replaceChildren(
        choice("Attention", trace.maps.map((map) => [map.name, map.name]), at.name, (name) => app.store.set({ name, heads: "" })),
        slider("Links from", { min: 0, max: 0.5, step: 0.01, value: state.least }, (value) => value.toFixed(2), (least) => app.store.set({ least })),
        tick("hide marks", state.hide, (hide) => app.store.set({ hide })),
        tick("whole words", state.merge, (merge) => app.store.set({ merge })),
        tick("turn", state.turn, (turn) => app.store.set({ turn })),
      );
      const on = chosen(at, state);
      const chip = (which, text) => {
        const made = button(text, () => app.store.set(toggled(at, state, which)), { class: "chip", "aria-pressed": String(on.includes(which)) });
        if (which >= 0) made.style.setProperty("--chip", headColour(which));
        return made;
      };
      chips.replaceChildren(chip(-1, "mean"), ...Array.from({ length: at.map.heads }, (_, h) => chip(h, String(h))));
    }

    function paintLinks(surface, trace, at, state, query, key) {
      const colours = theme();
      const { rows, columns, wide, first } = shape;
      const [left, right] = [shape.left, wide - shape.right];
      const y = (i, side) => 14 + (i - first[side]) * LINE;
      const row = groupOf(rows, query);
      const column = groupOf(columns, key);
      const several = chosen(at, state);
      background(surface, trace, at, state, y, left, right, row);
      for (const which of several) {
        const grid = new Grids().of(trace, at.name, which, { ...state, turn: false });
        if (!grid) continue;
        const stroke = several.length > 1 && which >= 0 ? headColour(which) : colours.accent;
        for (let c = first[1]; c < Math.min(first[1] + WINDOW, columns.length); c++) {
          const weight = grid.values[row * columns.length + c];
          if (weight < state.least) continue;
          const [a, b] = [y(row, 0), y(c, 1)];
          const middle = (left + right) / 2;
          surface.path(`M${left + 6} ${a}C${middle} ${a} ${middle} ${b} ${right - 6} ${b}`, { stroke, thick: 1 + 7 * weight, alpha: clamp(0.15 + weight, 0, 1) });
        }
      }
      const write = (all, side, x, anchor, chosenOne) => all.slice(first[side], first[side] + WINDOW).forEach((group, i) => {
        const place = i + first[side];
        const mine = place === chosenOne;
        surface.text(x, y(place, side), shorten(group.label, 14, (side ? shape.right : shape.left) - 10, mine ? 600 : "normal"), { size: 14, anchor, fill: mine ? colours.accent : colours.ink, weight: mine ? 600 : "normal" });
      });
      write(rows, 0, left, "end", row);
      write(columns, 1, right, "start", column);
    }

    /** The links of all other tokens, faint. */
    function background(surface, trace, at, state, y, left, right, row) {
      const { rows, columns } = shape;
      const grid = new Grids().of(trace, at.name, at.head, { ...state, turn: false });
      if (!grid || rows.length * columns.length > FAINT) return;
      const middle = (left + right) / 2;
      const ink = theme().quiet;
      for (let r = 0; r < rows.length; r++) for (let c = 0; c < columns.length; c++) {
        const weight = grid.values[r * columns.length + c];
        if (r === row || weight < Math.max(state.least, 0.1)) continue;
        surface.path(`M${left + 6} ${y(r, 0)}C${middle} ${y(r, 0)} ${middle} ${y(c, 1)} ${right - 6} ${y(c, 1)}`, { stroke: ink, thick: 1 + 5 * weight, alpha: 0.22 * weight + 0.04 });
      }
    }

    function shapeLinks(trace, at, state, query, key) {
      const rows = groups(trace.queries(at.name), state);
      const columns = groups(trace.keys(at.name), state);
      const start = (all, place) => clamp(groupOf(all, place) - WINDOW / 2, 0, Math.max(all.length - WINDOW, 0));
      const high = 28 + LINE * (Math.min(Math.max(rows.length, columns.length), WINDOW) - 1);
      const wide = app.room() > 540 ? clamp(app.room() * 0.38, 230, 420) : app.room();
      const label = (all) => clamp(Math.max(...all.slice(0, 400).map((group) => width(readable(group.label), 14, 600))) + 12, 60, wide * 0.4);
      return { rows, columns, wide, high, left: label(rows), right: label(columns), first: [start(rows, query), start(columns, key)] };
    }

    const ahead = (trace, at) => setTimeout(() => Promise.resolve(trace.head(at.name, at.head + 1)).catch(() => {}), 60);

    const which = (event) => {
      const side = event.offsetX < shape.wide / 2 ? 0 : 1;
      const i = Math.round((event.offsetY - 14) / LINE) + shape.first[side];
      const all = side ? shape.columns : shape.rows;
      if (i < 0 || i >= all.length) return null;
      const { query, key } = settled(app.trace, app.store.state);
      return side ? { query, key: all[i].from } : { query: all[i].from, key };
    };
    links.addEventListener("pointermove", (event) => app.store.point(which(event)));
    links.addEventListener("pointerleave", () => app.store.point(null));
    links.addEventListener("click", (event) => { const place = which(event); if (place) app.store.set(place); });
    links.addEventListener("keydown", (event) => {
      const at = settled(app.trace, app.store.state);
      const [r, c] = [groupOf(shape.rows, at.query), groupOf(shape.columns, at.key)];
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!by) return;
      event.preventDefault();
      app.store.set({
        query: shape.rows[clamp(r + by[0], 0, shape.rows.length - 1)].from, key: shape.columns[clamp(c + by[1], 0, shape.columns.length - 1)].from,
      });
    });

    const room = () => (app.room() > 540 ? app.room() - shape.wide - 28 : app.room());
    return {
      update(state) {
        const trace = app.trace;
        const at = settled(trace, state);
        build(trace, at, state);
        for (const each of chosen(at, state)) app.wait(trace.head(at.name, each));
        const grid = grids.of(trace, at.name, at.head, state);
        if (!grid) return;
        const { query, key } = settled(trace, { ...state, ...app.store.at });
        if (!app.store.hover || !shape) shape = shapeLinks(trace, at, state, query, key);
        paintLinks(new Sheet(links, shape.wide, shape.high), trace, at, state, query, key);
        matrix.show(grid, room(), placeOf(grid, query, key), {}, MOST);
        if (at.head + 1 < at.map.heads) ahead(trace, at); // the reader may want it next
        app.mark("head");
      },
      recolour: () => matrix.forget(),
      picture() {
        const state = app.store.state;
        const at = settled(app.trace, state);
        const box = layOut(matrix.grid, room(), MOST);
        return {
          wide: shape.wide + 28 + box.wide, high: Math.max(shape.high, box.high),
          paint(surface) {
            paintLinks(surface, app.trace, at, state, at.query, at.key);
            paintMatrix(surface, matrix.grid, { ...box, left: box.left + shape.wide + 28 }, placeOf(matrix.grid, at.query, at.key));
          },
        };
      },
      table() {
        const at = settled(app.trace, app.store.state);
        return exactTable(app.trace, at.name, at.head, app.store.state);
      },
    };
  },
};

/** The heads whose links are drawn: the selected one, and others that were clicked. */
function chosen(at, state) {
  const more = state.heads.split(",").filter(Boolean).map(Number).filter((h) => Number.isInteger(h) && h >= 0 && h < at.map.heads);
  return [...new Set([at.head, ...more])];
}

function toggled(at, state, which) {
  const on = chosen(at, state);
  if (which < 0 || at.head < 0) return { head: which, heads: "" };
  const after = on.includes(which) ? on.filter((h) => h !== which) : [which, ...on];
  return { head: after[0] ?? -1, heads: after.slice(1).join(",") };
}
