// @ts-check
// One selection for all views. It lives in the URL's fragment, so that back, forward and sharing work.

/**
 * @typedef {object} Selection
 * @property {string} trace  which trace @property {string} base  another, to compare with
 * @property {string} view  @property {string} name  which attention
 * @property {number} head  -1: the mean of all @property {number} query @property {number} key
 * @property {number} node  of the search tree; -1: none
 * @property {string} heads  more heads to draw links of, "0,3"
 * @property {boolean} hide  leave out marks such as <eos> @property {boolean} merge  pieces to words
 * @property {boolean} turn  swap the axes of the matrix @property {number} least  draw links from this weight on
 * @property {number} step  of a training; -1: the last @property {number} vectors  which positions
 * @property {string} left  another attention, to compare with @property {number} leftHead  SAME: the same head
 * @property {boolean} alone  compare within one answer, though there is another
 */

export const SAME = -2;

/** @type {Selection} */
export const FIRST = {
  trace: "", base: "", view: "overview", name: "", head: -1, query: 0, key: 0, node: -1,
  heads: "", hide: false, merge: false, turn: false, least: 0.02,
  step: -1, vectors: 0, left: "", leftHead: SAME, alone: false,
};

const STEPS = ["trace", "view"]; // changes that back and forward go through

export class Store {
  constructor() {
    this.state = { ...FIRST, ...read(location.hash) };
    /** @type {{query: number, key: number} | null} */
    this.hover = null;
    /** @type {Set<(state: Selection) => void>} */
    this.listeners = new Set();
    this.waiting = false;
    addEventListener("popstate", () => this.set({ ...FIRST, ...read(location.hash) }, false));
  }

  /** What is pointed at, else what is selected. */
  get at() {
    return this.hover ?? this.state;
  }

  /** @param {(state: Selection) => void} listener */
  subscribe(listener) {
    this.listeners.add(listener);
  }

  /** @param {Partial<Selection>} change */
  set(change, remember = true) {
    const before = this.state;
    this.state = { ...before, ...change };
    this.hover = null;
    if (remember) write(this.state, STEPS.some((name) => name in change && change[name] !== before[name]));
    this.tell();
  }

  /** @param {{query: number, key: number} | null} place */
  point(place) {
    if (place?.query === this.hover?.query && place?.key === this.hover?.key) return;
    this.hover = place;
    this.tell();
  }

  /** Everybody is told once before the next frame, however much has changed. */
  tell() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const listener of this.listeners) listener(this.state);
    });
  }
}

/** @param {string} hash @returns {Partial<Selection>} */
export function read(hash) {
  const found = {};
  for (const [name, text] of new URLSearchParams(hash.slice(1))) {
    if (!Object.hasOwn(FIRST, name)) continue;
    const like = FIRST[name];
    if (typeof like === "number" && !Number.isFinite(Number(text))) continue;
    found[name] = typeof like === "number" ? Number(text) : typeof like === "boolean" ? text === "1" : text;
  }
  return found;
}

/** @param {Selection} state @param {boolean} step */
function write(state, step) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(state))
    if (value !== FIRST[name]) said.set(name, typeof value === "boolean" ? String(Number(value)) : String(value));
  try {
    history[step ? "pushState" : "replaceState"](null, "", `#${said}`);
  } catch {
    // a page inside another page may have no address of its own
  }
}
