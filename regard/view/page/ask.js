// @ts-check
// What the model is asked, and what if: other words, a wider beam, a silent head, an answer that must begin so.

import { button, fill, make, number, readable } from "./dom.js";

export class Ask {
  /** @param {any} app @param {HTMLElement} place */
  constructor(app, place) {
    this.app = app;
    this.busy = false;
    this.trouble = "";
    this.sent = "";
    this.place = place;
    this.text = make("textarea", { id: "text", rows: "3", dir: "auto", spellcheck: false });
    this.text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.send(); });
    this.prefix = make("input", { id: "prefix", type: "text", dir: "auto", autocomplete: "off" });
    this.beam = make("input", { id: "beam", type: "number", min: "1", max: "16", step: "1" });
    this.alpha = make("input", { id: "alpha", type: "number", min: "0", max: "2", step: "0.1" });
    this.model = make("select", { id: "model" });
    this.answer = make("div", { class: "answer" });
    this.wishes = make("div", { class: "wishes" });
    this.told = make("p", { class: "trouble", role: "alert" });
    this.go = button("Look", () => this.send(), { class: "main" });
    if (app.source.live) this.form();
    place.append(this.answer);
  }

  form() {
    const field = (id, label, input) => make("div", { class: "field" }, make("label", { for: id }, label), input);
    this.place.append(
      field("model", "Model", this.model), field("text", "Text", this.text),
      make("details", {}, make("summary", {}, "What if …"),
        field("prefix", "The answer begins with", this.prefix),
        make("div", { class: "twins" }, field("beam", "Beam", this.beam), field("alpha", "Length penalty α", this.alpha)),
        make("p", { class: "quiet small" }, "Silence a head, or force where a word looks, from the views; it is listed here until you let go."),
      ),
      this.wishes, this.go, this.told,
    );
  }

  /** @param {any[]} models */
  offer(models) {
    fill(this.model, ...models.map((each) => make("option", { value: each.id }, readable(each.id))));
  }

  async send() {
    if (this.busy || !this.text.value.trim()) return;
    this.busy = true;
    this.trouble = "";
    this.sent = this.text.value;
    this.show();
    try {
      const { silence, force } = this.app.wish;
      const how = {};
      if (this.beam.value) how.beam = Number(this.beam.value);
      if (this.alpha.value) how.alpha = Number(this.alpha.value);
      const wanted = { ...(this.prefix.value ? { prefix: this.prefix.value } : {}), ...(Object.keys(force.look).length ? { look: force.look } : {}) };
      await this.app.look({ model: this.model.value || undefined, input: this.text.value, silence, force: wanted, ...how });
    } catch (error) {
      this.trouble = error instanceof Error ? error.message : String(error);
    }
    this.busy = false;
    this.show();
  }

  /** Fields as the trace was asked; what the reader has changed since is kept. */
  adopt(trace) {
    const { text = "", force = {}, how = {} } = trace.header.asked;
    if (this.text.value === this.sent) this.sent = this.text.value = text;
    this.prefix.value = force.prefix ?? "";
    this.beam.value = how.beam ?? "";
    this.alpha.value = how.alpha ?? "";
    if (trace.header.name) this.model.value = trace.header.name;
    this.show();
  }

  show() {
    const { app } = this;
    app.busy?.();
    this.go.textContent = this.busy ? "Looking …" : "Look";
    this.go.disabled = this.busy;
    this.told.textContent = this.trouble;
    fill(this.wishes, ...this.chips());
    if (!app.trace) return;
    fill(this.answer, ...answers(app));
  }

  chips() {
    const { silence, force } = this.app.wish;
    const heads = Object.entries(silence).flatMap(([name, list]) => list.map((head) =>
      button(`${name} head ${head} silent ×`, () => this.app.silence(name, head), { class: "wish", "aria-label": `let ${name} head ${head} speak again` })));
    const written = this.app.trace?.tokens.target ?? [];
    const read = this.app.trace?.tokens.source ?? [];
    const looks = Object.entries(force.look).map(([query, key]) =>
      button(`${readable(written[query] ?? query)} → ${readable(read[key] ?? String(key))} ×`, () => this.app.unforce(query), { class: "wish", "aria-label": `no longer force word ${query}` }));
    return [...heads, ...looks];
  }
}

/** What was asked and answered; where another trace is there to compare with, what has changed. */
function answers(app) {
  const { trace, base } = app;
  const split = (each) => each.header.caption.split(" → ");
  const [asked, ...rest] = split(trace);
  const answer = rest.join(" → ");
  const before = base ? split(base).slice(1).join(" → ") : "";
  const score = trace.header.score;
  const changed = base && before !== answer;
  return [
    make("h2", {}, "Asked"),
    make("p", { dir: "auto" }, readable(asked)),
    answer ? make("h2", {}, base ? "Answered now" : "Answered") : null,
    answer ? make("p", { dir: "auto", class: "said" }, ...(changed ? different(before, answer) : [readable(answer)])) : null,
    base ? make("h2", {}, "Before") : null,
    base ? make("p", { dir: "auto", class: "quiet" }, changed ? readable(before) : "the same answer") : null,
    base ? make("div", { class: "actions" }, button("See the difference", () => app.store.set({ view: "compare" })), button("Forget it", () => app.store.set({ base: "" }))) : null,
    score === null || score === undefined ? null : make("p", { class: "quiet small" }, `score ${number(score, 3)}`),
    trace.header.model ? make("p", { class: "quiet small" }, `${readable(trace.header.title)}, weights ${trace.header.model}`) : null,
  ];
}

/** The answer with its new letters marked. @param {string} before @param {string} now */
function different(before, now) {
  let start = 0;
  while (start < Math.min(before.length, now.length) && before[start] === now[start]) start++;
  let end = 0;
  while (end < Math.min(before.length, now.length) - start && before.at(-1 - end) === now.at(-1 - end)) end++;
  return [readable(now.slice(0, start)), make("mark", {}, readable(now.slice(start, now.length - end))), readable(now.slice(now.length - end))];
}
