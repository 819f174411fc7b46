// @ts-check
// The page: opens a trace, shows one view at a time, and keeps all of them on one selection.

import { Ask } from "./ask.js";
import { css } from "./colour.js";
import { Saved, Served } from "./data.js";
import { button, make, readable } from "./dom.js";
import { settled } from "./grid.js";
import { Inspector } from "./inspector.js";
import { csv, download, png, svg } from "./save.js";
import { Store } from "./store.js";
import { alignment } from "./views/alignment.js";
import { arithmetic } from "./views/arithmetic.js";
import { compare } from "./views/compare.js";
import { head } from "./views/head.js";
import { overview } from "./views/overview.js";
import { positions } from "./views/positions.js";
import { search } from "./views/search.js";
import { training } from "./views/training.js";

const VIEWS = [overview, head, alignment, search, arithmetic, positions, training, compare];
const CAVEAT = "Where a model looked need not be why it answered so: other weights can give the same answer, and much reaches a word by other ways. Silence a head or force a look to find out.";
const KEYS = [
  ["1 … 8", "views"], ["arrows", "from token to token, from head to head, from candidate to candidate"], ["Enter", "the strongest cell of the row; opens a head in the overview"],
  ["[ and ]", "head before, head after"], ["{ and }", "attention before, attention after"], ["space", "play the alignment, the search or the training; next step of the arithmetic"],
  ["f", "force the selected cell of the alignment"], ["t", "light or dark"], ["?", "this help"],
];
/** What colours mean: which scale, and what stands at its ends. @type {Record<string, ["weight" | "signed", string, string]>} */
const LEGENDS = {
  weight: ["weight", "weight 0", "1, by its root"],
  change: ["signed", "less weight", "more, by its root"],
  sign: ["signed", "negative", "positive, by its root"],
};

class App {
  constructor() {
    const data = document.getElementById("data");
    this.source = data ? new Saved(JSON.parse(data.textContent ?? "")) : new Served();
    this.store = new Store();
    this.trace = null;
    this.base = null;
    this.previewed = null;
    this.wish = { silence: {}, force: { look: {} } };
    /** @type {Map<string, any>} */
    this.mounted = new Map();
    this.waiting = new Set();
    this.stage = find("stage");
    this.ask = new Ask(this, find("ask"));
    this.inspector = new Inspector(this, find("inspector"));
    this.colour(remembered("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    this.tabs();
    this.corner();
    this.store.subscribe(() => this.show());
    addEventListener("resize", () => this.refresh());
    addEventListener("keydown", (event) => this.key(event));
    this.begin();
  }

  async begin() {
    try {
      const models = await this.source.models();
      this.ask.offer(models);
      const first = models.find((model) => model.example);
      if (this.source.live && !this.store.state.trace && first) {
        this.ask.model.value = first.id;
        this.ask.text.value = first.example;
        await this.ask.send();
      }
    } catch (error) {
      this.trouble(error);
    }
    this.refresh();
  }

  /** Asks the model; what was shown before stays at hand, to be compared with. @param {any} body */
  async look(body) {
    const id = await this.source.make(body);
    const before = this.trace?.id ?? "";
    this.store.set(before === id ? { trace: id } : { trace: id, base: before, alone: false });
  }

  // ---- what if

  silenced(name, head) {
    return Boolean(this.wish.silence[name]?.includes(head) || this.trace?.header.asked.silence?.[name]?.includes(head));
  }

  silence(name, head) {
    const now = this.wish.silence[name] ?? [];
    const after = now.includes(head) ? now.filter((h) => h !== head) : [...now, head];
    const { [name]: _, ...others } = this.wish.silence;
    this.wish.silence = after.length ? { ...others, [name]: after } : others;
    this.ask.send();
  }

  force(query, key) {
    this.wish.force.look = { ...this.wish.force.look, [query]: key };
    this.ask.send();
  }

  unforce(query) {
    const { [query]: _, ...others } = this.wish.force.look;
    this.wish.force.look = others;
    this.ask.send();
  }

  /** The answer must begin so. @param {string} prefix */
  begin_with(prefix) {
    this.ask.prefix.value = prefix;
    this.ask.send();
  }

  // ---- showing

  refresh() {
    this.store.tell();
  }

  /** Something, or null while it is on its way; then everything is shown again. @param {any} promise */
  wait(promise) {
    if (!(promise instanceof Promise)) return promise;
    if (!this.waiting.has(promise)) {
      this.waiting.add(promise);
      this.busy();
      promise.then(() => this.refresh(), (error) => this.trouble(error)).finally(() => { this.waiting.delete(promise); this.busy(); });
    }
    return null;
  }

  busy() {
    this.stage.setAttribute("aria-busy", String(Boolean(this.waiting.size || this.opening || this.ask?.busy)));
  }

  /** Width of the stage. */
  room() {
    return Math.max(this.stage.clientWidth - 8, 220);
  }

  mark(name) {
    performance.mark(`regard:${name}`);
  }

  preview(spot) {
    if (spot?.name === this.previewed?.name && spot?.head === this.previewed?.head) return;
    this.previewed = spot;
    this.refresh();
  }

  async open(id, slot) {
    try {
      const trace = await this.source.trace(id);
      if (slot === "trace") this.adopt(trace);
      else this.base = trace;
    } catch (error) {
      this.trouble(error);
      this.store.set({ [slot]: "" }); // it is no longer kept: the reader can ask again
    }
    this.opening = null;
    this.busy();
    this.refresh();
  }

  adopt(trace) {
    this.trace = trace;
    this.wish = { silence: { ...(trace.header.asked.silence ?? {}) }, force: { look: { ...(trace.header.asked.force?.look ?? {}) } } };
    document.title = `${trace.header.title || "Regard"} – Regard`;
    find("title").textContent = readable(trace.header.title);
    if (!this.store.state.name) this.store.state.name = trace.header.main;
    this.ask.adopt(trace);
  }

  show() {
    const { state } = this.store;
    const view = VIEWS.find((each) => each.id === state.view) ?? overview;
    const wanted = state.trace || (this.source.live ? "" : "saved");
    if (wanted && (this.trace?.id !== wanted && !(wanted === "saved" && this.trace)))
      if (this.opening !== wanted) { this.opening = wanted; this.busy(); this.open(wanted, "trace"); }
    if (state.base && this.base?.id !== state.base) { this.base = null; this.open(state.base, "base"); }
    if (!state.base) this.base = null;
    this.choose(view);
    if (!this.trace && !(view.alone && this.source.live)) return this.opening ? undefined : this.empty();
    const shown = this.panel(view);
    const missing = view.needs?.(this.trace, this) ?? "";
    shown.body.hidden = Boolean(missing);
    shown.missing.textContent = missing;
    shown.missing.hidden = !missing;
    try {
      if (!missing) shown.parts.update(state);
      if (this.trace || !missing) this.inspector.update(missing ? { ...state, view: "head" } : state, missing ? {} : shown.parts);
    } catch (error) {
      this.trouble(error);
      throw error;
    }
    this.ask.show();
    this.foot(view, shown, missing);
  }

  /** Marks the tab of a view, and hides the others' panels. */
  choose(view) {
    for (const [id, each] of this.mounted) each.panel.hidden = id !== view.id;
    for (const tab of find("tabs").children) {
      const chosen = tab.id === `tab-${view.id}`;
      if (chosen && tab.getAttribute("aria-selected") !== "true") tab.parentElement.scrollTo({ left: tab.offsetLeft - tab.parentElement.offsetLeft - 60 });
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
  }

  /** The view's place on the stage; made when it is first wanted. */
  panel(view) {
    find("wait").hidden = true;
    find("inspector").hidden = false;
    if (!this.mounted.has(view.id)) {
      const body = make("div", {});
      const missing = make("p", { class: "empty" });
      const how = make("details", { class: "how" }, make("summary", {}, "How to read this"), ...view.how.map((text) => make("p", {}, text)), make("p", { class: "quiet" }, CAVEAT));
      const panel = make("section", { id: `panel-${view.id}`, role: "tabpanel", "aria-labelledby": `tab-${view.id}` }, how, body, missing);
      this.stage.append(panel);
      this.mounted.set(view.id, { panel, body, missing, parts: view.mount(body, this) });
    }
    return this.mounted.get(view.id);
  }

  empty() {
    for (const each of this.mounted.values()) each.panel.hidden = true;
    find("inspector").hidden = true;
    find("foot").replaceChildren();
    this.footed = "";
    find("wait").hidden = false;
    find("wait").className = "empty";
    find("wait").textContent = this.ask.trouble || (this.source.live ? "Write a text, and look." : "Nothing was saved with this page.");
    this.ask.show();
  }

  trouble(error) {
    console.warn(error);
    this.ask.trouble = error instanceof Error ? error.message : String(error);
    this.ask.show();
  }

  foot(view, shown, missing) {
    const key = `${view.id} ${missing} ${document.documentElement.dataset.theme} ${this.trace?.id}`;
    if (this.footed === key) return;
    this.footed = key;
    const title = () => (view.alone ? this.ask.model.value : this.trace?.header.title) || "regard";
    const line = () => {
      if (view.alone) return `${readable(title())} · Regard`;
      const { name, head } = settled(this.trace, this.store.state);
      const which = ["overview", "search", "positions"].includes(view.id) ? "" : ` · ${name}, ${head < 0 ? "mean of all heads" : `head ${head}`}`;
      return `${readable(title())}${which} · weights ${this.trace.header.model || "not told"} · Regard`;
    };
    const file = (kind) => `${title()}-${view.id}.${kind}`;
    const save = missing ? [] : [
      make("span", {}, "Save this view"),
      button("SVG", () => download(svg(shown.parts.picture(), line()), file("svg"))),
      button("PNG", async () => download(await png(shown.parts.picture(), line()), file("png"))),
      button("CSV", () => {
        const table = shown.parts.table();
        if (table instanceof Promise) table.then((rows) => download(csv(rows), file("csv"))).catch((error) => this.trouble(error));
        else download(csv(table), file("csv")); // at once: a browser holds back some of what no key or click asked for
      }),
    ];
    find("foot").replaceChildren(...save, ...(missing ? [] : view.legend ?? []).map((name) => legend(...LEGENDS[name])));
  }

  // ---- the frame

  tabs() {
    const bar = find("tabs");
    VIEWS.forEach((view) => bar.append(make("button", {
      type: "button", role: "tab", id: `tab-${view.id}`, "aria-selected": "false", onclick: () => this.store.set({ view: view.id }),
    }, view.title)));
    bar.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      const now = VIEWS.findIndex((view) => view.id === this.store.state.view);
      const next = VIEWS[(now + by + VIEWS.length) % VIEWS.length];
      this.store.set({ view: next.id });
      find(`tab-${next.id}`).focus();
    });
  }

  corner() {
    const lines = KEYS.map(([key, what]) => make("tr", {}, make("th", { scope: "row" }, make("kbd", {}, key)), make("td", {}, what)));
    const help = make("dialog", { "aria-labelledby": "helped" }, make("h2", { id: "helped" }, "Keys"),
      make("table", {}, make("tbody", {}, ...lines)), make("p", { class: "quiet small" }, CAVEAT), make("form", { method: "dialog" }, make("button", { class: "main" }, "Close")));
    document.body.append(help);
    this.help = () => (help.open ? help.close() : help.showModal());
    find("help").addEventListener("click", this.help);
    find("theme").addEventListener("click", () => this.turn());
  }

  turn() {
    this.colour(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    try { localStorage.setItem("regard theme", document.documentElement.dataset.theme ?? ""); } catch { /* a page from disk may have no memory */ }
  }

  colour(name) {
    document.documentElement.dataset.theme = name;
    for (const { parts } of this.mounted.values()) parts.recolour?.();
    this.refresh();
  }

  key(event) {
    const typing = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
    if (typing || event.ctrlKey || event.metaKey) return;
    const { store } = this;
    const parts = () => this.mounted.get(store.state.view)?.parts;
    const keys = { "?": () => this.help(), t: () => this.turn(), f: () => parts()?.force?.(), " ": () => parts()?.play?.(), ...this.steps() };
    const view = VIEWS[Number(event.key) - 1];
    if (event.key === " " && event.target instanceof Element && event.target.closest("button, summary, a")) return;
    if (view) store.set({ view: view.id });
    else if (event.key in keys) keys[event.key]();
    else return;
    event.preventDefault();
  }

  /** Keys that go from head to head and from attention to attention. */
  steps() {
    if (!this.trace) return {};
    const at = settled(this.trace, this.store.state);
    const turn = (list, now, by) => list[(list.indexOf(now) + by + list.length) % list.length];
    const heads = [-1, ...Array.from({ length: at.map.heads }, (_, h) => h)];
    const names = this.trace.maps.map((map) => map.name);
    const head = (by) => () => this.store.set({ head: turn(heads, at.head, by), heads: "" });
    const name = (by) => () => this.store.set({ name: turn(names, at.name, by) });
    return { "[": head(-1), "]": head(1), "{": name(-1), "}": name(1) };
  }
}

/** What colours mean. @param {"weight" | "signed"} kind @param {string} low @param {string} high */
function legend(kind, low, high) {
  const canvas = make("canvas", { width: 120, height: 10, role: "img", "aria-label": `colours from ${low} to ${high}` });
  const brush = canvas.getContext("2d");
  for (let x = 0; x < 120; x++) {
    const share = kind === "weight" ? x / 119 : (2 * x) / 119 - 1;
    brush.fillStyle = css(kind, share * Math.abs(share));
    brush.fillRect(x, 0, 1, 10);
  }
  return make("span", { class: "legend" }, low, canvas, high);
}

/** @param {string} id @returns {any} */
function find(id) {
  return document.getElementById(id);
}

/** @param {string} name */
function remembered(name) {
  try {
    return localStorage.getItem(`regard ${name}`);
  } catch {
    return null;
  }
}

new App();
