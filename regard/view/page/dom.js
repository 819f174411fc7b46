// @ts-check
// Making elements. Text enters the page by textContent alone, so nothing that a token says becomes markup.

/**
 * An element with text or children in it: make("p", { class: "quiet" }, "Hello, ", make("b", {}, name)).
 * Names that begin with "on" are listeners; "dir", "title" and the like are set as attributes.
 * @param {string} kind @param {Record<string, any>} [about] @param {...(Node | string | null | false)} children
 * @returns {any}
 */
export function make(kind, about = {}, ...children) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(about)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  fill(element, ...children);
  return element;
}

/** @param {Element} element @param {...(Node | string | null | false)} children */
export function fill(element, ...children) {
  const there = /** @type {(Node | string)[]} */ (children.filter((child) => child !== null && child !== false && child !== undefined));
  element.replaceChildren(...there);
  return element;
}

/** A token as text: isolated, so that right-to-left writing stays where it is. @param {string} text */
export const token = (text, kind = "b") => make(kind, { dir: "auto", class: "token" }, readable(text));

/** Letters without a look of their own are made visible, and a piece that begins a word shows it; those that turn text
 * around are left out. @param {string} text */
export function readable(text) {
  return text.replace(/^[▁Ġ]/, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\p{Cf}/gu, "").replace(CONTROL, picture);
}

/** Running text: its lines stay lines, and texts with a tab between them stand below each other. @param {string} text */
export function prose(text) {
  return text.replace(/\t/g, "\n").replace(/\p{Cf}/gu, "").replace(CONTROL, picture);
}

const CONTROL = /[\u0000-\u0009\u000b-\u001f]/g;
const picture = (/** @type {string} */ letter) => String.fromCodePoint(0x2400 + letter.charCodeAt(0));

/**
 * A labelled choice. @param {string} label @param {[string, string][]} options @param {string} value
 * @param {(value: string) => void} chosen
 */
export function choice(label, options, value, chosen) {
  const select = make("select", { onchange: () => chosen(select.value) });
  for (const [each, text] of options) select.append(make("option", { value: each }, readable(text)));
  select.value = value;
  select.setAttribute("aria-label", label);
  return make("label", { class: "choice" }, make("span", {}, label), select);
}

/** A box to tick. @param {string} label @param {boolean} on @param {(on: boolean) => void} ticked */
export function tick(label, on, ticked) {
  const box = make("input", { type: "checkbox", checked: on, onchange: () => ticked(box.checked) });
  return make("label", { class: "tick" }, box, label);
}

/**
 * A slider that tells its value. @param {string} label @param {{min: number, max: number, step: number, value: number}} range
 * @param {(value: number) => string} tell @param {(value: number) => void} moved
 */
export function slider(label, range, tell, moved) {
  const output = make("output", {}, tell(range.value));
  const input = make("input", {
    type: "range", min: String(range.min), max: String(range.max), step: String(range.step),
    oninput: () => { output.textContent = tell(Number(input.value)); moved(Number(input.value)); },
  });
  input.value = String(range.value);
  return make("label", { class: "slider" }, make("span", {}, label), input, output);
}

/** @param {string} text @param {() => void} pressed @param {Record<string, any>} [about] */
export const button = (text, pressed, about = {}) => make("button", { type: "button", onclick: pressed, ...about }, text);

/** A weight as it is printed. @param {number} weight */
export const number = (weight, digits = 4) => (Number.isFinite(weight) ? weight.toFixed(digits).replace("-", "−") : "–");

/** @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
