// @ts-check
// The beam as a tree: what was weighed at each step, what went on, and why the others did not.

import { theme } from "../colour.js";
import { d3 } from "../d3.js";
import { button, clamp, make, number, readable, slider, token } from "../dom.js";
import { Sheet, shorten, width } from "../surface.js";

const ROW = 46;
const GAP = 28; // between two steps
const PILL = { least: 84, most: 200, beside: 52, high: 28 }; // as wide as its token, and a probability beside it
const GHOSTS = 3; // candidates of a step that are shown though they were dropped
const FATES = { kept: "went on", finished: "finished", pruned: "dropped", left: "left unfinished: enough others had finished" };

export const search = {
  id: "search",
  title: "Search",
  how: [
    "From left to right, a column for each step. Each hypothesis proposes continuations, and only the best of all go on: dashed ones were dropped. The wider a link, the likelier the word after what stands before it. The path of the answer is in colour.",
    "Finished hypotheses are ranked by their log-probability divided by a length penalty, else short ones would always win. Select a node to see its sums, and let the model begin an answer there.",
  ],
  needs({ header, tokens }) {
    if (header.search) return "";
    const reads = tokens.target.length <= header.given + 1;
    return reads ? "Nothing was searched for here: this model reads, and answers at once." : "Nothing was searched for here: the words were drawn by lot. To search, switch Sample off under What if.";
  },

  mount(body, app) {
    let tree = null; // as it came
    let owner = "";
    let until = Infinity;
    let timer = 0;
    let spots = [];
    const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Search tree; arrow keys move between candidates", "aria-describedby": "cell" });
    const tools = make("div", { class: "tools" });
    const table = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Finished hypotheses" });
    const scroll = make("div", { class: "scroll" }, canvas);
    body.append(tools, scroll, table);
    const under = (event) => spots.find((spot) => event.offsetX >= spot.x - 2 && event.offsetX <= spot.x + spot.wide + 2 && Math.abs(event.offsetY - spot.y) < ROW / 2);
    canvas.addEventListener("pointermove", (event) => { const spot = under(event); canvas.title = spot ? readable(tree.nodes[spot.i].token) : ""; });
    canvas.addEventListener("click", (event) => { const spot = under(event); if (spot) app.store.set({ node: spot.i }); });
    canvas.addEventListener("keydown", (event) => {
      const here = spots.find((spot) => spot.i === app.store.state.node) ?? spots[0];
      const column = spots.filter((spot) => spot.step === here.step).sort((a, b) => a.y - b.y);
      const at = column.indexOf(here);
      const to = {
        ArrowLeft: () => spots.find((spot) => spot.i === tree.nodes[here.i].parent),
        ArrowRight: () => spots.find((spot) => tree.nodes[spot.i].parent === here.i),
        ArrowUp: () => column[at - 1], ArrowDown: () => column[at + 1],
      }[event.key];
      if (!to) return;
      event.preventDefault();
      const next = to();
      if (next) { app.store.set({ node: next.i }); scroll.scrollTo({ left: next.x - scroll.clientWidth / 2 }); }
    });

    /** What came from the search, once a trace. */
    function adopt(found) {
      tree = found;
      owner = app.trace.id;
      tree.onBest = new Set(tree.best);
      const steps = 1 + Math.max(...tree.nodes.map((node) => node.step));
      until = Infinity;
      const columns = Array.from({ length: steps }, () => /** @type {number[]} */ ([]));
      tree.nodes.forEach((node, i) => columns[node.step].push(i));
      const alive = (all) => all.filter((i) => tree.nodes[i].fate !== "pruned").length;
      const rows = Math.max(GHOSTS + 1, ...columns.map(alive)); // no column is longer than the longest without ghosts
      let x = 6;
      tree.columns = columns.map((all) => {
        const order = [...all].sort((a, b) => tree.nodes[b].total - tree.nodes[a].total);
        let ghosts = Math.min(GHOSTS, rows - alive(all));
        const nodes = order.filter((i) => tree.nodes[i].fate !== "pruned" || ghosts-- > 0);
        const wide = clamp(Math.max(...nodes.map((i) => width(readable(tree.nodes[i].token), 13, 600))) + PILL.beside, PILL.least, PILL.most);
        x += wide + GAP;
        return { nodes, wide, x: x - wide - GAP };
      });
      tools.replaceChildren(
        slider("Steps", { min: 1, max: steps, step: 1, value: steps }, (value) => String(value), (value) => { until = value; app.refresh(); }),
        button("Play", () => parts.play()),
        make("span", { class: "quiet small" }, `${tree.nodes.length} candidates, ${tree.nodes.filter((node) => node.fate === "pruned").length} dropped`),
      );
      table.replaceChildren(hypotheses(tree, app));
    }

    function lay() {
      const shown = tree.columns.slice(0, until === Infinity ? undefined : until);
      spots = shown.flatMap(({ nodes, wide, x }, step) => nodes.map((i, row) => ({ i, step, wide, x, y: 22 + row * ROW })));
      const last = shown.at(-1);
      return { wide: last.x + last.wide + 6, high: 6 + ROW * Math.max(...tree.columns.map(({ nodes }) => nodes.length)) };
    }

    function paint(surface) {
      const colours = theme();
      const where = new Map(spots.map((spot) => [spot.i, spot]));
      const link = d3.linkHorizontal();
      const order = [...spots].sort((a, b) => Number(tree.onBest.has(a.i)) - Number(tree.onBest.has(b.i)));
      for (const spot of order) {
        const node = tree.nodes[spot.i];
        const from = where.get(node.parent);
        if (!from) continue;
        const best = tree.onBest.has(spot.i);
        surface.path(link({ source: [from.x + from.wide, from.y], target: [spot.x, spot.y] }), {
          stroke: best ? colours.accent : node.fate === "pruned" ? colours.line : colours.quiet,
          thick: 1 + 5 * Math.exp(node.logprob), alpha: best ? 0.9 : 0.6, dash: node.fate === "pruned" ? [4, 4] : [],
        });
      }
      for (const spot of spots) pill(surface, spot, tree.nodes[spot.i], colours);
    }

    function pill(surface, spot, node, colours) {
      const best = tree.onBest.has(spot.i);
      const ghost = node.fate === "pruned";
      const chosen = spot.i === app.store.state.node;
      const top = spot.y - PILL.high / 2;
      surface.rect(spot.x, top, spot.wide, PILL.high, {
        fill: colours.card, stroke: best ? colours.accent : ghost ? colours.line : colours.quiet, thick: best ? 2 : 1, round: node.fate === "finished" ? 3 : 14,
      });
      if (node.fate === "finished") surface.rect(spot.x + 3, top + 3, spot.wide - 6, PILL.high - 6, { stroke: best ? colours.accent : colours.quiet, round: 2 });
      if (chosen) surface.rect(spot.x - 3.5, top - 3.5, spot.wide + 7, PILL.high + 7, { stroke: colours.ink, thick: 2, round: 16 });
      const percent = 100 * Math.exp(node.logprob);
      const weight = best ? 600 : "normal";
      surface.text(spot.x + 9, spot.y, shorten(node.token, 13, spot.wide - PILL.beside + 2, weight), { size: 13, fill: ghost ? colours.quiet : colours.ink, weight });
      surface.text(spot.x + spot.wide - 8, spot.y, percent >= 99.5 ? "1.00" : percent < 0.5 ? "<.01" : `.${String(Math.round(percent)).padStart(2, "0")}`, { size: 11, anchor: "end", fill: best ? colours.accent : colours.quiet });
    }

    const parts = {
      update() {
        const found = app.wait(app.trace.search());
        if (!found) return;
        if (owner !== app.trace.id) adopt(found);
        const box = lay();
        paint(new Sheet(canvas, box.wide, box.high));
        app.mark("search");
      },
      /** Step by step from the first. */
      play() {
        clearInterval(timer);
        until = 1;
        app.refresh();
        timer = setInterval(() => {
          until += 1;
          if (until > tree.columns.length || app.store.state.view !== "search") { until = Infinity; clearInterval(timer); }
          scroll.scrollTo({ left: 1e6 });
          app.refresh();
        }, 600);
      },
      inspect(inspector) {
        if (!tree || owner !== app.trace.id) return inspector.tell(["Weighing …"], []);
        const i = tree.nodes[app.store.state.node] ? app.store.state.node : tree.best.at(-1);
        node(inspector, tree, i, app);
      },
      picture: () => ({ ...lay(), paint }),
      table: () => [
        ["step", "token", "text", "log-probability", "sum", "score", "fate", "parent", "on the best path"],
        ...tree.nodes.map((each, i) => [each.step, each.token, each.text, each.logprob, each.total, each.score, each.fate, each.parent, tree.onBest.has(i)].map(String)),
      ],
    };
    return parts;
  },
};

/** One candidate in numbers, and what became of it. */
function node(inspector, tree, i, app) {
  const it = tree.nodes[i];
  const length = it.step + 1;
  const before = it.parent < 0 ? "" : tree.nodes[it.parent].text;
  const line = (what, value) => make("tr", {}, make("th", { scope: "row" }, what), make("td", {}, value));
  inspector.tell(
    [before ? "After " : "At the beginning, ", before && token(before), before ? ", " : "", token(it.token), " had probability ", make("output", {}, number(Math.exp(it.logprob)))],
    [
      make("table", { class: "figures" }, make("tbody", {},
        line("log p of this token", number(it.logprob)), line(`sum of ${length}`, number(it.total)),
        line("length penalty", number(it.score ? it.total / it.score : 1, 3)), line("score if it ended here", number(it.score)), line("fate", FATES[it.fate].split(":")[0]))),
      make("p", { class: "small why" }, why(tree, i)),
      make("div", { class: "actions" }, app.source.live && app.ask.takes("prefix") && !it.end && button("Begin the answer so", () => app.begin_with(it.text))),
    ],
  );
}

/** Why a candidate went no further, in a sentence. */
function why(tree, i) {
  const it = tree.nodes[i];
  const same = tree.nodes.filter((each) => each.step === it.step);
  if (tree.onBest.has(i)) return it.end ? "It ended with the best score of all: this is the answer." : "It lies on the path of the answer.";
  if (it.fate === "pruned") {
    const stayed = same.filter((each) => each.fate !== "pruned");
    const last = Math.min(...stayed.map((each) => each.total));
    return `Dropped: ${stayed.length} of ${same.length} candidates stayed at this step, and its sum was ${number(last - it.total, 3)} below the last of them.`;
  }
  if (it.fate === "finished") return `Finished, but its score is ${number(tree.score - it.score, 3)} below that of the answer.`;
  if (it.fate === "left") return "It could have gone on, but enough hypotheses had finished.";
  return "It went on for a while; none that came of it became the answer.";
}

/** Finished hypotheses, the best first: why each won or lost. */
function hypotheses(tree, app) {
  const best = tree.best.at(-1);
  const done = tree.nodes.map((_, i) => i).filter((i) => tree.nodes[i].fate === "finished" || i === best).sort((a, b) => tree.nodes[b].score - tree.nodes[a].score);
  const head = ["Hypothesis", "tokens", "sum of log p", "÷ penalty", "= score", ""].map((text) => make("th", { scope: "col" }, text));
  const lines = done.slice(0, 16).map((i) => {
    const it = tree.nodes[i];
    const open = button(readable(it.text) || "(nothing)", () => app.store.set({ node: i }), { class: "plain token", dir: "auto" });
    const cells = [String(it.step + 1), number(it.total), number(it.score ? it.total / it.score : 1, 3), number(it.score)];
    return make("tr", i === best ? { class: "chosen" } : {}, make("th", { scope: "row", class: "roomy" }, open), ...cells.map((text) => make("td", { class: "figure" }, text)), make("td", {}, i === best ? "the answer" : `${number(clamp(tree.score - it.score, 0, Infinity), 3)} behind`));
  });
  return make("table", {}, make("caption", {}, "Finished hypotheses"), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines));
}
