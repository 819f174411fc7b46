// @ts-check
// What the model is asked, and what if: other words, a wider beam, lots, a silent head, an answer that must begin so.

import { button, fill, make, number, prose, readable } from "./dom.js";

export class Ask {
  /** @param {any} app @param {HTMLElement} place */
  constructor(app, place) {
    this.app = app;
    this.busy = false;
    this.trouble = "";
    this.sent = "";
    this.models = [];
    this.place = place;
    this.text = make("textarea", { id: "text", rows: "3", dir: "auto", spellcheck: false });
    this.text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.send(); });
    this.prefix = make("input", { id: "prefix", type: "text", dir: "auto", autocomplete: "off" });
    this.beam = make("input", { id: "beam", type: "number", min: "1", max: "16", step: "1" });
    this.alpha = make("input", { id: "alpha", type: "number", min: "0", max: "2", step: "0.1" });
    this.sample = make("input", { id: "sample", type: "checkbox", onchange: () => this.show() });
    this.seed = make("input", { id: "seed", type: "number", min: "0", step: "1" });
    this.model = make("select", { id: "model", onchange: () => app.refresh() });
    this.answer = make("div", { class: "answer" });
    this.wishes = make("div", { class: "wishes" });
    this.told = make("p", { class: "trouble", role: "alert" });
    this.go = button("Look", () => this.send(), { class: "main" });
    if (app.source.live) this.form();
    place.append(this.answer);
  }

  form() {
    const field = (id, label, input) => make("div", { class: "field" }, make("label", { for: id }, label), input);
    this.fields = {
      prefix: field("prefix", "The answer begins with", this.prefix),
      beam: make("div", { class: "twins" }, field("beam", "Beam", this.beam), field("alpha", "Length penalty α", this.alpha)),
      sample: make("div", { class: "twins" }, make("label", { class: "tick" }, this.sample, "Sample"), field("seed", "Seed", this.seed)),
    };
    this.place.append(
      field("model", "Model", this.model), field("text", "Text", this.text),
      make("details", {}, make("summary", {}, "What if …"), ...Object.values(this.fields),
        make("p", { class: "quiet small" }, "Silence a head, or force where a word looks, from the views; it is listed here until you let go."),
      ),
      this.wishes, this.go, this.told,
    );
  }

  /** @param {any[]} models */
  offer(models) {
    this.models = models;
    fill(this.model, ...models.map((each) => make("option", { value: each.id }, readable(each.id))));
  }

  async send() {
    if (this.busy || !this.text.value.trim()) return;
    this.busy = true;
    this.trouble = "";
    this.sent = this.text.value;
    this.show();
    try {
      this.letGo();
      const { silence, force } = this.app.wish;
      const begins = this.takes("prefix") && this.prefix.value ? { prefix: this.prefix.value } : {};
      const wanted = { ...begins, ...(Object.keys(force.look).length ? { look: force.look } : {}) };
      await this.app.look({ model: this.model.value || undefined, input: this.text.value, silence, force: wanted, ...this.how() });
    } catch (error) {
      this.trouble = error instanceof Error ? error.message : String(error);
    }
    this.busy = false;
    this.show();
  }

  /** What was forced belongs to one text, and what was silenced to one model. */
  letGo() {
    if (!this.app.trace) return;
    const { asked: { text = "", force = {} }, name = this.model.value } = this.app.trace.header;
    if (text === this.text.value && name === this.model.value) return;
    this.app.wish.force.look = {};
    if (this.prefix.value === (force.prefix ?? "")) this.prefix.value = "";
    if (name !== this.model.value) this.app.wish.silence = {};
  }

  /** How an answer is searched for, where anything is said of it; or drawn by lot. */
  how() {
    const lots = this.takes("sample") ? { sample: this.sample.checked } : {};
    if (lots.sample) return { ...lots, ...(this.seed.value ? { seed: Number(this.seed.value) } : {}) };
    if (!this.takes("beam")) return lots;
    return { ...lots, ...(this.beam.value ? { beam: Number(this.beam.value) } : {}), ...(this.alpha.value ? { alpha: Number(this.alpha.value) } : {}) };
  }

  /** Whether the chosen model has a use for a setting. What rewrites is always searched for while it is looked at. @param {string} name */
  takes(name) {
    const { settings, task } = this.models.find((model) => model.id === this.model.value) ?? {};
    return name === "sample" ? Boolean(settings?.includes(name)) && task !== "rewrite" : settings?.includes(name) ?? true;
  }

  /** Fields as the trace was asked; what the reader has changed since is kept. */
  adopt(trace) {
    const { text = "", force = {}, how = {} } = trace.header.asked;
    if (this.text.value === this.sent) this.sent = this.text.value = text;
    this.prefix.value = force.prefix ?? "";
    this.beam.value = how.beam ?? "";
    this.alpha.value = how.alpha ?? "";
    this.sample.checked = Boolean(how.sample);
    this.seed.value = how.seed ?? "";
    if (trace.header.name) this.model.value = trace.header.name;
    this.show();
  }

  show() {
    const { app } = this;
    app.busy?.();
    this.go.textContent = this.busy ? "Looking …" : "Look";
    this.go.disabled = this.busy;
    this.told.textContent = this.trouble;
    for (const [name, field] of Object.entries(this.fields ?? {})) field.hidden = !this.takes(name);
    for (const input of [this.beam, this.alpha]) input.disabled = this.sample.checked && this.takes("sample");
    this.seed.disabled = !this.sample.checked;
    fill(this.wishes, ...this.chips());
    if (!app.trace) return;
    fill(this.answer, ...answers(app));
  }

  chips() {
    const { silence, force } = this.app.wish;
    const heads = Object.entries(silence).flatMap(([name, list]) => list.map((head) =>
      button(`${name} head ${head} silent ×`, () => this.app.silence(name, head), { class: "wish", "aria-label": `let ${name} head ${head} speak again` })));
    const read = this.app.trace?.tokens.source ?? [];
    const looks = Object.entries(force.look).map(([query, key]) =>
      button(`token ${Number(query) + 1} → ${readable(read[key] ?? String(key))} ×`, () => this.app.unforce(query), { class: "wish", "aria-label": `no longer force token ${Number(query) + 1}` }));
    return [...heads, ...looks];
  }
}

/** What was asked and answered; where another trace is there to compare with, that one too. */
function answers(app) {
  const { trace, base } = app;
  const [now, before] = [parted(trace), base && parted(base)];
  const { score, model, title } = trace.header;
  const same = base && before.asked === now.asked;
  const changed = same && before.answer !== now.answer;
  const by = base && base.header.model !== model ? `, by ${readable(base.header.title)}` : "";
  return [
    make("h2", {}, "Asked"),
    make("p", { dir: "auto", class: "prose" }, prose(now.asked)),
    now.answer && make("h2", {}, base ? "Answered now" : "Answered"),
    now.answer && make("p", { dir: "auto", class: "said prose" }, ...(changed ? different(before.answer, now.answer) : [prose(now.answer)])),
    now.more && make("p", { dir: "auto", class: "quiet small prose" }, prose(now.more)),
    base && make("h2", {}, `Before${by}`),
    base && !same && make("p", { dir: "auto", class: "quiet prose" }, prose(before.asked)),
    base && make("p", { dir: "auto", class: "quiet prose" }, same && !changed ? "the same answer" : prose(before.answer)),
    base && make("div", { class: "actions" }, button("See the difference", () => app.store.set({ view: "compare" })), button("Forget it", () => app.store.set({ base: "" }))),
    score === null || score === undefined ? null : make("p", { class: "quiet small" }, `score ${number(score, 3)}`),
    model && make("p", { class: "quiet small" }, `${readable(title)}, weights ${model}`),
  ];
}

/** A caption has text, arrow and answer; what stands behind a tab of the answer is said besides. */
function parted({ header: { caption, asked } }) {
  const text = asked.text ?? caption.split(" → ")[0];
  const said = caption.startsWith(`${text} → `) ? caption.slice(text.length + 3) || "(nothing)" : caption === text ? "" : caption;
  const [answer, ...more] = said.split("\t");
  return { asked: text, answer, more: more.join("\n") };
}

/** The answer with its new letters marked. @param {string} before @param {string} now */
function different(before, now) {
  let start = 0;
  while (start < Math.min(before.length, now.length) && before[start] === now[start]) start++;
  let end = 0;
  while (end < Math.min(before.length, now.length) - start && before.at(-1 - end) === now.at(-1 - end)) end++;
  return [prose(now.slice(0, start)), make("mark", {}, prose(now.slice(start, now.length - end))), prose(now.slice(now.length - end))];
}
