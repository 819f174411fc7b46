// @ts-check
"use strict";

// One selection serves every part of the page; whoever changes it calls show(). Text enters the page by textContent alone.
(() => {
  const find = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
  const { trace, main, scale } = JSON.parse(find("data").textContent);
  const names = Object.keys(trace.maps);
  const MEAN = -1;
  const STRONGEST = 6;
  const DARK = 0.43; // white letters can be read on viridis up to here, black ones from here on
  const SIDES = { source: "read", target: "written", prefix: "written before" };

  const at = { name: main, head: MEAN, row: 0, column: 0 };
  let rows = [[0]]; // the weights of what is selected, and the largest of them
  let most = 1;
  /** @type {{row: number, column: number} | null} */
  let hover = null;

  // ---- what is to be seen ----

  const map = (name = at.name) => trace.maps[name];
  const queries = () => trace.tokens[map().queries];
  const keys = () => trace.tokens[map().keys];
  const shown = () => hover ?? at;
  const clamp = (place, length) => Math.min(Math.max(place, 0), length - 1);

  /** The weights of one head, or the mean of all: rows of numbers. */
  function weights(name, head) {
    const heads = map(name).weights;
    if (head !== MEAN) return heads[head];
    return heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, h) => sum + h[r][c], 0) / heads.length));
  }

  const largest = (table) => table.reduce((most, row) => Math.max(most, ...row), 0) || 1;

  const anchors = scale.map((colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)));

  /** The colour at a share of the way from nothing to the largest weight. */
  function colour(share) {
    const place = Math.min(Math.max(share, 0), 1) * (anchors.length - 1);
    const below = Math.min(Math.floor(place), anchors.length - 2);
    return anchors[below].map((a, i) => Math.round(a + (anchors[below + 1][i] - a) * (place - below)));
  }

  const css = (share) => `rgb(${colour(share).join(" ")})`;
  const ink = (share) => (share > DARK ? "#000" : "#fff");

  // ---- making elements ----

  function make(kind, text = "", parent = null) {
    const element = document.createElement(kind);
    element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function choices(select, options) {
    select.replaceChildren();
    for (const [value, text] of options) make("option", text, select).value = value;
  }

  const headName = (head) => (head === MEAN ? "mean of all" : `head ${head}`);
  const headsOf = (name) => [MEAN, ...map(name).weights.keys()];

  // ---- the map ----

  const canvas = find("map");
  let cell = 0; // pixels to a weight
  let picture = canvas;

  /** A canvas with a pixel to each weight, to be stretched. */
  function pixels(table) {
    const small = make("canvas");
    small.width = table[0].length;
    small.height = table.length;
    const brush = small.getContext("2d");
    const image = brush.createImageData(small.width, small.height);
    const top = largest(table);
    table.flat().forEach((weight, i) => image.data.set([...colour(weight / top), 255], 4 * i));
    brush.putImageData(image, 0, 0);
    return small;
  }

  function layOut() {
    const longest = Math.max(queries().length, keys().length);
    cell = Math.max(1, Math.round(Math.min(34, 8000 / longest, Math.max(12, 640 / longest)))); // browsers refuse huge canvases
    const size = `${Math.min(15, Math.max(1, cell - 2))}px`;
    for (const [id, tokens, side] of [["rows", queries(), "height"], ["columns", keys(), "width"]]) {
      find(id).replaceChildren();
      for (const token of tokens) {
        const label = make("span", token, find(id));
        label.dir = "auto";
        label.style[side] = label.style.lineHeight = `${cell}px`;
        label.style.fontSize = size;
      }
    }
    const sharp = window.devicePixelRatio || 1;
    canvas.style.width = `${keys().length * cell}px`;
    canvas.style.height = `${queries().length * cell}px`;
    canvas.width = keys().length * cell * sharp;
    canvas.height = queries().length * cell * sharp;
    canvas.getContext("2d").setTransform(sharp, 0, 0, sharp, 0, 0);
  }

  function paint() {
    const brush = canvas.getContext("2d");
    brush.imageSmoothingEnabled = false;
    brush.drawImage(picture, 0, 0, picture.width * cell, picture.height * cell);
    const { row, column } = shown();
    brush.lineWidth = cell < 18 ? 1 : 2;
    for (const [stroke, inset] of [["#000", brush.lineWidth / 2], ["#fff", brush.lineWidth * 1.5]]) {
      brush.strokeStyle = stroke;
      brush.strokeRect(column * cell + inset, row * cell + inset, cell - 2 * inset, cell - 2 * inset);
    }
  }

  /** All heads of all attentions, small; each is a button that shows it large. */
  function overview() {
    for (const name of names) {
      make("h3", name, find("overview"));
      const line = make("div", "", find("overview"));
      line.className = "heads";
      for (const head of headsOf(name)) {
        const button = make("button", "", line);
        button.type = "button";
        button.append(pixels(weights(name, head)), head === MEAN ? "mean" : String(head));
        button.setAttribute("aria-label", `${name}, ${headName(head)}`);
        button.addEventListener("click", () => choose(name, head));
        Object.assign(button.dataset, { name, head });
      }
    }
  }

  // ---- the sentences: the answer's tokens can be pointed at, the source's take the colour of their weight ----

  function sentences() {
    find("sentences").replaceChildren();
    for (const [id, side, axis] of [["keys", map().keys, "column"], ["queries", map().queries, "row"]]) {
      make("h3", SIDES[side], find("sentences"));
      const line = make("div", "", find("sentences"));
      line.className = "tokens";
      line.id = id;
      trace.tokens[side].forEach((token, i) => {
        const chip = make("span", token, line);
        chip.dir = "auto";
        chip.addEventListener("pointerenter", () => { hover = { ...at, [axis]: i }; show(); });
        chip.addEventListener("pointerleave", () => { hover = null; show(); });
        chip.addEventListener("click", () => { at[axis] = i; show(); });
      });
    }
  }

  // ---- showing the selection ----

  function show() {
    const { row, column } = shown();
    paint();
    mark("rows", row);
    mark("columns", column);
    mark("queries", row);
    mark("keys", column);
    [...find("keys").children].forEach((chip, c) => {
      chip.style.background = css(rows[row][c] / most);
      chip.style.color = ink(rows[row][c] / most);
    });
    tell(row, column);
  }

  function mark(id, chosen) {
    [...find(id).children].forEach((child, i) => child.classList.toggle("chosen", i === chosen));
  }

  function tell(row, column) {
    const sentence = find("cell");
    sentence.replaceChildren(map().queries === "source" ? "While it read " : "While it wrote ");
    make("b", queries()[row], sentence);
    sentence.append(", the model looked at ");
    make("b", keys()[column], sentence);
    sentence.append(" with weight ");
    make("output", rows[row][column].toFixed(4), sentence);
    find("strongest").replaceChildren();
    for (const c of [...rows[row].keys()].sort((a, b) => rows[row][b] - rows[row][a]).slice(0, STRONGEST)) {
      const line = make("tr", "", find("strongest"));
      make("td", keys()[c], line);
      make("td", rows[row][c].toFixed(4), line);
      make("div", "", make("td", "", line)).style.width = `${100 * rows[row][c]}%`;
    }
  }

  /** Another attention or head; the selected cell stays where it is as far as the new map has one there. */
  function choose(name, head) {
    hover = null;
    at.name = name;
    at.head = Math.min(head, map().weights.length - 1);
    at.row = clamp(at.row, queries().length);
    at.column = clamp(at.column, keys().length);
    rows = weights(at.name, at.head);
    most = largest(rows);
    picture = pixels(rows);
    find("most").textContent = most.toFixed(2);
    choices(find("head"), headsOf(name).map((h) => [h, headName(h)]));
    find("name").value = name;
    find("head").value = String(at.head);
    for (const button of find("overview").querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.dataset.name === name && Number(button.dataset.head) === at.head));
    sentences();
    layOut();
    show();
  }

  // ---- hands and keys ----

  function under(event) {
    return {
      row: clamp(Math.floor(event.offsetY / cell), queries().length),
      column: clamp(Math.floor(event.offsetX / cell), keys().length),
    };
  }

  canvas.addEventListener("pointermove", (event) => { hover = under(event); show(); });
  canvas.addEventListener("pointerleave", () => { hover = null; show(); });
  canvas.addEventListener("click", (event) => { Object.assign(at, under(event)); show(); });

  const turn = (list, now, by) => list[(list.indexOf(now) + by + list.length) % list.length];
  const KEYS = {
    ArrowUp: () => { at.row -= 1; },
    ArrowDown: () => { at.row += 1; },
    ArrowLeft: () => { at.column -= 1; },
    ArrowRight: () => { at.column += 1; },
    Home: () => { at.column = 0; },
    End: () => { at.column = Infinity; },
    Enter: () => { at.column = rows[at.row].indexOf(Math.max(...rows[at.row])); },
    "[": () => choose(at.name, turn(headsOf(at.name), at.head, -1)),
    "]": () => choose(at.name, turn(headsOf(at.name), at.head, 1)),
    "{": () => choose(turn(names, at.name, -1), at.head),
    "}": () => choose(turn(names, at.name, 1), at.head),
  };

  canvas.addEventListener("keydown", (event) => {
    const typed = event.key.length === 1; // on some keyboards brackets need Alt; Alt with an arrow is the browser's
    if (!(event.key in KEYS) || event.metaKey || (!typed && (event.altKey || event.ctrlKey))) return;
    event.preventDefault();
    hover = null;
    KEYS[event.key]();
    at.row = clamp(at.row, queries().length);
    at.column = clamp(at.column, keys().length);
    show();
  });

  find("name").addEventListener("change", () => choose(find("name").value, at.head));
  find("head").addEventListener("change", () => choose(at.name, Number(find("head").value)));
  find("picker").addEventListener("submit", (event) => event.preventDefault());

  // ---- begin ----

  if (trace.title) document.title = find("title").textContent = trace.title;
  find("caption").textContent = trace.caption + (trace.score === null ? "" : ` (score ${trace.score.toFixed(3)})`);
  find("ramp").style.background = `linear-gradient(to right, ${scale.join(", ")})`;
  choices(find("name"), names.map((name) => [name, name]));
  overview();
  choose(main, MEAN);
})();
