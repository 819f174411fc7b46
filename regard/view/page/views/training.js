// @ts-check
// The course of a training: its curves, and where the model looked in one text along the way.

import { draw } from "../chart.js";
import { button, make, number, prose, readable, slider } from "../dom.js";
import { inside } from "../grid.js";
import { Matrix, layOut, paint as paintMatrix } from "../matrix.js";
import { Sheet } from "../surface.js";
import { hard } from "./alignment.js";

const HIGH = 122;
const EVERY = 4000; // milliseconds between two looks at a run
const MOST = 40; // pixels of a cell
const CURVES = 3; // measures that are drawn; the inspector and CSV have them all
/** @type {[string, string, boolean][]} */
const ALWAYS = [["loss", "loss", true], ["norm", "length of the gradient", true], ["rate", "learning rate", false]];
const NAMES = { bleu: "BLEU", chrf: "chrF", exact: "exact answers, %", accuracy: "accuracy, %", f1: "F1", bits: "bits" };
const SKEWED = /perplexity|loss|error/; // measures for a logarithmic axis
const FIRST = ["bleu", "accuracy", "f1", "exact", "perplexity"]; // those to draw rather than others
const HELD = "valid "; // stands before what was measured on held-out data

export const training = {
  id: "training",
  title: "Training",
  how: [
    "Above, the run's own log; the dashed loss, and what is below it, were measured on held-out data. Below, one text that was held out, and where the model looked while it was made to write the right answer: slide to watch an alignment come out of nothing, usually all at once.",
    "While a run is still training, the page looks again every few seconds.",
  ],
  legend: ["weight"],
  alone: true, // there is something to see before anything was asked
  needs: (_, app) => (app.source.live || app.source.data?.training ? "" : "The course of a training is shown by a server: regard serve RUN."),

  mount(body, app) {
    let course = null;
    let lines = []; // of the log, each with plain names
    let owner = "";
    let built = "";
    let timer = 0;
    let playing = 0;
    let asked = 0;
    let grid = null;
    const canvas = make("canvas", { role: "img", "aria-label": "Curves of the training; the table of the log can be saved as CSV" });
    const tools = make("div", { class: "tools" });
    const told = make("p", { class: "quiet prose", dir: "auto" });
    const place = (to) => ({ query: to.row, key: to.column });
    const matrix = new Matrix(app, "Where the model looked at this step; arrow keys move", {
      pick: (to) => app.store.set(place(to)), point: (to) => app.store.point(to && place(to)),
    });
    body.append(make("div", { class: "scroll" }, canvas), tools, told, matrix.element);

    const run = () => app.ask.model.value || app.trace?.header.title || "";

    function load() {
      asked = Date.now();
      const mine = run();
      const promise = app.source.training(mine);
      promise.then((found) => {
        if (mine !== run()) return; // another was chosen meanwhile
        course = found;
        lines = found.metrics.map(flat);
      }, () => {});
      return app.wait(promise);
    }

    /** The look after the chosen step; where it is no longer there, the nearest. */
    function chosen() {
      const { step } = app.store.state;
      if (step < 0) return course.checkpoints.at(-1);
      return course.checkpoints.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a), course.checkpoints[0]);
    }

    const go = (i) => app.store.set({ step: i === course.checkpoints.length - 1 ? -1 : course.checkpoints[i].step });

    /** Controls are made anew when there is another look to slide to; else they follow. */
    function build() {
      const { checkpoints } = course;
      const key = `${run()} ${checkpoints.map((one) => one.step).join()} ${playing}`;
      const it = chosen();
      if (key !== built) {
        built = key;
        const range = { min: 0, max: checkpoints.length - 1, step: 1, value: checkpoints.indexOf(it) };
        if (!checkpoints.length) tools.replaceChildren(make("span", { class: "quiet" }, "Nothing has been looked at yet: there is no checkpoint, or no attention."));
        else tools.replaceChildren(slider("After step", range, (i) => String(checkpoints[i].step), go), button(playing ? "Stop" : "Play", () => parts.play()));
      }
      const input = tools.querySelector("input");
      if (!it || !input) return;
      input.value = String(checkpoints.indexOf(it));
      tools.querySelector("output").textContent = String(it.step);
    }

    /** Columns of the log that can be drawn: what every training has, then what was measured. */
    function curves() {
      const points = (name) => lines.filter((line) => Number.isFinite(line[name])).map((line) => [line.step, line[name]]);
      const measured = [...new Set(lines.flatMap((line) => Object.keys(line)))].filter((name) => name.startsWith(HELD) && name !== `${HELD}loss`).map((name) => name.slice(HELD.length));
      const order = [...FIRST.filter((name) => measured.includes(name)), ...measured.filter((name) => !FIRST.includes(name))].slice(0, CURVES);
      return [
        ...ALWAYS.map(([name, title, log]) => ({ title, log, points: points(name), more: name === "loss" ? points(`${HELD}loss`) : [] })),
        ...order.map((name) => ({ title: NAMES[name] ?? name.replaceAll("_", " "), log: SKEWED.test(name), points: points(HELD + name) })),
      ].filter((curve) => curve.points.length);
    }

    function shape() {
      const all = curves();
      const across = app.room() > 560 ? Math.min(3, all.length) : 1;
      return { all, across, wide: app.room(), high: Math.ceil(all.length / Math.max(across, 1)) * (HIGH + 14) };
    }

    function paint(surface) {
      const { all, across, wide } = shape();
      const at = chosen()?.step;
      const until = Math.max(...lines.map((line) => line.step));
      all.forEach((curve, i) => draw(surface, { x: ((i % across) * wide) / across, y: Math.floor(i / across) * (HIGH + 14), wide: wide / across - 10, high: HIGH }, { ...curve, at, until }));
    }

    /** The shared selection, as far as this text goes. */
    const cell = (it) => ({ row: inside(app.store.at.query, 0, it.rows.length - 1), column: inside(app.store.at.key, 0, it.columns.length - 1) });

    const parts = {
      update() {
        if (owner !== run()) { owner = run(); course = null; asked = 0; }
        if (!course && Date.now() - asked > EVERY / 2) load();
        if (!timer && app.source.live) timer = setInterval(() => { if (app.store.state.view === "training" && !document.hidden) load(); }, EVERY);
        if (!course) return;
        build();
        const { wide, high } = shape();
        canvas.hidden = !high;
        if (high) paint(new Sheet(canvas, wide, high));
        const it = chosen();
        told.textContent = it ? prose(it.caption) : "";
        matrix.element.hidden = !it;
        if (it) {
          if (grid?.it !== it) grid = { it, rows: it.rows, columns: it.columns, values: it.weights.flat() };
          matrix.show(grid, app.room(), cell(it), { path: it.across ? hard(grid) : undefined }, MOST);
        }
        app.mark("training");
      },
      recolour: () => matrix.forget(),
      /** From the first look to the last. */
      play() {
        clearInterval(playing);
        playing = playing || !course?.checkpoints.length ? 0 : setInterval(() => {
          const i = course ? course.checkpoints.indexOf(chosen()) + 1 : Infinity;
          if (i < (course?.checkpoints.length ?? 0) && app.store.state.view === "training") go(i);
          else { clearInterval(playing); playing = 0; app.refresh(); }
        }, 500);
        if (playing) go(0);
        app.refresh();
      },
      inspect(inspector) {
        const it = course && chosen();
        if (!it) return inspector.tell([course ? "Nothing to look at yet." : "Reading the log …"], course ? [figures(lines, Infinity)] : []);
        const { row, column } = cell(it);
        inspector.tell(
          [`After step ${it.step}, `, make("b", { dir: "auto" }, readable(it.rows[row])), " looked at ", make("b", { dir: "auto" }, readable(it.columns[column])), " with weight ", make("output", {}, number(it.weights[row][column]))],
          [figures(lines, it.step), make("p", { class: "quiet small" }, `${it.name}, mean of its heads`)],
        );
      },
      picture() {
        const box = shape();
        const map = grid && layOut(grid, app.room(), MOST);
        return { wide: box.wide, high: box.high + (map ? map.high + 20 : 0), paint(surface) { paint(surface); if (map) paintMatrix(surface, grid, { ...map, top: map.top + box.high + 20 }, null); } };
      },
      table() {
        const names = [...new Set(lines.flatMap((line) => Object.keys(line)))];
        return [names, ...lines.map((line) => names.map((name) => String(line[name] ?? "")))];
      },
    };
    return parts;
  },
};

/** A line of the log with a plain value to each name; definitions are for the model card. */
function flat({ valid, definitions, of, ...line }) {
  const measured = Object.fromEntries(Object.entries(valid ?? {}).map(([name, value]) => [HELD + name, value]));
  return { ...line, ...measured, ...(of ? { of: of.join(" ") } : {}) };
}

/** What the log has to say up to a step. */
function figures(lines, step) {
  const known = Object.assign({}, ...lines.filter((line) => line.step <= step));
  const names = Object.keys(known).filter((name) => Number.isFinite(known[name]) && (name.startsWith(HELD) || ["loss", "rate", "norm", "tokens_per_second"].includes(name)));
  const tell = (value) => (value && Math.abs(value) < 0.01 ? value.toExponential(2).replaceAll("-", "−") : number(value, Math.abs(value) >= 1000 ? 0 : 4));
  const rows = names.map((name) => make("tr", {}, make("th", { scope: "row" }, name.replaceAll("_", " ")), make("td", {}, tell(known[name]))));
  return make("table", { class: "figures" }, make("caption", {}, `The log up to step ${known.step ?? 0}`), make("tbody", {}, ...rows));
}
