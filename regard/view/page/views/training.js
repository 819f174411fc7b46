// @ts-check
// The course of a training: its curves, and where the model looked in one text after each checkpoint.

import { draw } from "../chart.js";
import { button, make, number, readable, slider } from "../dom.js";
import { Matrix, layOut, paint as paintMatrix } from "../matrix.js";
import { Sheet } from "../surface.js";
import { hard } from "./alignment.js";

const HIGH = 170;
const EVERY = 4000; // milliseconds between two looks at a run
/** @type {[string, string, boolean][]} */
const CURVES = [["loss", "loss", true], ["norm", "length of the gradient", true], ["rate", "learning rate", false], ["bleu", "BLEU", false], ["perplexity", "perplexity", true], ["accuracy", "accuracy", false]];

export const training = {
  id: "training",
  title: "Training",
  how: [
    "Above, the run's own log. Below, one text that was held out, as the model read it after each checkpoint: slide to watch an alignment come out of nothing, usually all at once.",
    "While a run is still training, the page looks again every few seconds.",
  ],
  needs: (_, app) => (app.source.live || app.source.data?.training ? "" : "The course of a training is shown by a server: regard serve RUN."),

  mount(body, app) {
    let course = null;
    let owner = "";
    let place = -1; // which checkpoint; -1: the last
    let timer = 0;
    let asked = 0;
    let grid = null;
    const canvas = make("canvas", { role: "img", "aria-label": "Curves of the training; the table of the log can be saved as CSV" });
    const tools = make("div", { class: "tools" });
    const told = make("p", { class: "quiet", dir: "auto" });
    const matrix = new Matrix(app, "Where the model looked after this checkpoint; arrow keys move", { pick: (to) => { at = to; app.refresh(); }, point: (to) => { at = to ?? at; app.refresh(); } });
    let at = { row: 0, column: 0 };
    body.append(make("div", { class: "scroll" }, canvas), tools, told, matrix.element);

    const run = () => app.ask.model.value || app.trace.header.title;

    function load() {
      asked = Date.now();
      const promise = app.source.training(run());
      promise.then((found) => {
        const grown = !course || found.metrics.length !== course.metrics.length || found.checkpoints.length !== course.checkpoints.length;
        course = found;
        if (grown) build();
      }, () => {});
      return app.wait(promise);
    }

    function build() {
      const { checkpoints } = course;
      grid = null;
      if (!checkpoints.length) return tools.replaceChildren(make("span", { class: "quiet" }, "No checkpoint has been written yet."));
      const last = checkpoints.length - 1;
      tools.replaceChildren(
        slider("Checkpoint", { min: 0, max: last, step: 1, value: place < 0 ? last : place }, (i) => `step ${checkpoints[i].step}`, (i) => { place = i === last ? -1 : i; grid = null; app.refresh(); }),
        button("Play", () => parts.play()),
      );
    }

    const chosen = () => course.checkpoints.at(place);
    const curves = () => CURVES.map(([name, title, log]) => ({ title, log, points: course.metrics.filter((line) => Number.isFinite(line[name])).map((line) => [line.step, line[name]]) })).filter((curve) => curve.points.length > 1);

    function shape() {
      const all = curves();
      const across = app.room() > 560 ? Math.min(3, all.length) : 1;
      return { all, across, wide: app.room(), high: Math.max(1, Math.ceil(all.length / Math.max(across, 1))) * (HIGH + 14) };
    }

    function paint(surface) {
      const { all, across, wide } = shape();
      const step = chosen()?.step;
      all.forEach((curve, i) => draw(surface, { x: ((i % across) * wide) / across, y: Math.floor(i / across) * (HIGH + 14), wide: wide / across - 10, high: HIGH }, { ...curve, at: step }));
    }

    const parts = {
      update() {
        if (owner !== `${app.trace.id} ${run()}`) { owner = `${app.trace.id} ${run()}`; course = null; }
        if (!course && Date.now() - asked > EVERY / 2) load();
        if (!timer && app.source.live) timer = setInterval(() => { if (app.store.state.view === "training" && !document.hidden) load(); }, EVERY);
        if (!course) return;
        const { wide, high } = shape();
        paint(new Sheet(canvas, wide, high));
        const it = chosen();
        if (!it) return;
        grid ??= { rows: it.rows, columns: it.columns, values: it.weights.flat() };
        at = { row: Math.min(at.row, grid.rows.length - 1), column: Math.min(at.column, grid.columns.length - 1) };
        told.textContent = readable(it.caption);
        matrix.show(grid, app.room(), at, { path: it.across ? hard(grid) : undefined }, 30);
        app.mark("training");
      },
      recolour: () => matrix.forget(),
      /** From the first checkpoint to the last. */
      play() {
        if (!course?.checkpoints.length) return;
        let i = 0;
        const next = () => {
          place = i >= course.checkpoints.length - 1 ? -1 : i;
          grid = null;
          build();
          app.refresh();
          i += 1;
          if (place !== -1) setTimeout(next, 700);
        };
        next();
      },
      inspect(inspector) {
        const it = course && chosen();
        if (!it) return inspector.tell([course ? "Nothing to look at yet." : "Reading the log …"], []);
        const line = Object.assign({}, ...course.metrics.filter((each) => each.step <= it.step));
        const names = ["loss", "rate", "norm", "tokens_per_second", "bleu", "exact"].filter((name) => Number.isFinite(line[name]));
        inspector.tell(
          [`After step ${it.step}, `, make("b", { dir: "auto" }, readable(it.rows[at.row])), " looked at ", make("b", { dir: "auto" }, readable(it.columns[at.column])), " with weight ", make("output", {}, number(it.weights[at.row][at.column]))],
          [make("table", { class: "figures" }, make("caption", {}, `The log at step ${line.step ?? "–"}`), make("tbody", {}, ...names.map((name) => make("tr", {}, make("th", { scope: "row" }, name.replaceAll("_", " ")), make("td", {}, line[name] < 0.01 ? line[name].toExponential(2) : number(line[name], line[name] > 100 ? 0 : 4)))))),
            make("p", { class: "quiet small" }, `${it.name}, mean of its heads`)],
        );
      },
      picture() {
        const box = shape();
        const map = grid && layOut(grid, app.room(), 30);
        return { wide: box.wide, high: box.high + (map ? map.high + 20 : 0), paint(surface) { paint(surface); if (map) paintMatrix(surface, grid, { ...map, top: map.top + box.high + 20 }, null); } };
      },
      table() {
        const names = [...new Set(course.metrics.flatMap((line) => Object.keys(line)))];
        return [names, ...course.metrics.map((line) => names.map((name) => String(line[name] ?? "")))];
      },
    };
    return parts;
  },
};
