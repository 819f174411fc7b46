// @ts-check
// Every head of every attention at once.

import { headColour, table, theme } from "../colour.js";
import { choice, clamp, make, number } from "../dom.js";
import { Sheet, shorten, width } from "../surface.js";

const FIGURES = {
  entropy: ["spread", "bits of entropy of a row, on average"],
  distance: ["distance", "how far from the diagonal it looks, in tokens"],
  diagonal: ["diagonal", "share of weight next to the diagonal"],
  marks: ["marks", "share of weight on marks such as <eos>"],
};

/** An attention's name in few letters. @param {string} name */
const brief = (name) => name.replace(/\.attention$/, "").replace("encoder", "enc").replace("decoder", "dec").replace(/^blocks\./, "");

export const overview = {
  id: "overview",
  title: "Overview",
  how: [
    "Each square is one head: a row for every token that asks, a column for every token that may be looked at, darker for more weight. A diagonal looks at its own place or the one before; a vertical stripe is a token that everybody looks at.",
    "Point at a head to see it large, press Enter or click to open it. Rank them to find the sharp ones, or those that only watch marks.",
  ],
  legend: ["weight"],

  mount(body, app) {
    let rank = "";
    let pictures = null;
    let owner = null;
    let spots = [];
    const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "All heads; arrow keys move from head to head, Enter opens one", "aria-describedby": "cell" });
    const bar = make("div", { class: "tools" }, choice("Rank by", [["", "layer and head"], ...Object.entries(FIGURES).map(([id, [name]]) => /** @type {[string, string]} */ ([id, name]))], "", (to) => { rank = to; app.refresh(); }));
    body.append(bar, make("div", { class: "scroll" }, canvas));

    const same = (spot) => spot.name === app.store.state.name && spot.head === app.store.state.head;
    const choose = (spot, open) => app.store.set({ name: spot.name, head: spot.head, ...(open ? { view: "head" } : {}) });
    const under = (event) => spots.find((spot) => event.offsetX >= spot.x && event.offsetX < spot.x + spot.size && event.offsetY >= spot.y && event.offsetY < spot.y + spot.size + 14);
    canvas.addEventListener("pointermove", (event) => app.preview(under(event) ?? null));
    canvas.addEventListener("pointerleave", () => app.preview(null));
    canvas.addEventListener("click", (event) => { const spot = under(event); if (spot) choose(spot, true); });
    canvas.addEventListener("keydown", (event) => {
      const now = Math.max(spots.findIndex(same), 0);
      const across = spots.filter((spot) => spot.y === spots[now].y).length;
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowUp: now - across, ArrowDown: now + across, Enter: now }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(spots[clamp(to, 0, spots.length - 1)], event.key === "Enter");
    });

    /** Thumbnails of each head; drawn once, and again in another theme. */
    function draw(trace, bytes) {
      const key = `${trace.id} ${document.documentElement.dataset.theme}`;
      if (owner === key) return;
      owner = key;
      const { side, heads } = trace.header;
      const colours = table("weight");
      pictures = trace.maps.map((map, m) => Array.from({ length: map.heads }, (_, h) => {
        const [rows, columns] = map.thumb;
        const small = document.createElement("canvas");
        [small.width, small.height] = [columns, rows];
        const brush = /** @type {CanvasRenderingContext2D} */ (small.getContext("2d"));
        const image = brush.createImageData(columns, rows);
        const words = new Uint32Array(image.data.buffer);
        const begin = (m * heads + h) * side * side;
        for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) words[r * columns + c] = colours[bytes[begin + r * side + c]];
        brush.putImageData(image, 0, 0);
        return small;
      }));
    }

    function lay(trace, room) {
      const all = trace.maps.flatMap((map, m) => Array.from({ length: map.heads }, (_, head) => ({ name: map.name, m, head, map })));
      const labels = rank ? 0 : Math.min(150, Math.max(...trace.maps.map((map) => width(map.name, 13))) + 16);
      const heads = trace.header.heads;
      const across = rank ? Math.max(4, Math.min(12, Math.floor(room / 76))) : heads;
      const gap = heads > 8 && !rank ? 6 : 10;
      const size = clamp(Math.floor((room - labels) / across) - gap, 18, 92);
      if (rank) all.sort((a, b) => b.map[rank][b.head] - a.map[rank][a.head]);
      const line = size + (rank ? 39 : 27);
      spots = all.map((each, i) => {
        const [row, column] = rank ? [Math.floor(i / across), i % across] : [each.m, each.head];
        return { ...each, size, x: labels + column * (size + gap) + 3, y: 3 + row * line };
      });
      return { labels, wide: Math.max(labels + across * (size + gap) + 3, 120), high: Math.max(...spots.map((spot) => spot.y)) + line + 4 };
    }

    function paint(surface, trace, box) {
      const colours = theme();
      if (!rank) trace.maps.forEach((map) => {
        const first = spots.find((spot) => spot.name === map.name);
        surface.text(box.labels - 12, first.y + first.size / 2, shorten(map.name, 13, box.labels - 14), { anchor: "end", fill: colours.ink });
      });
      const most = rank ? Math.max(...spots.map((spot) => spot.map[rank][spot.head]), 1e-9) : 1;
      for (const spot of spots) {
        const [rows, columns] = spot.map.shape;
        const scale = spot.size / Math.max(rows, columns);
        const [w, h] = rows > 2 * columns || columns > 2 * rows ? [spot.size, spot.size] : [columns * scale, rows * scale];
        surface.rect(spot.x, spot.y, spot.size, spot.size, { fill: colours.card, round: 3 });
        surface.image(pictures[spot.m][spot.head], spot.x + (spot.size - w) / 2, spot.y + (spot.size - h) / 2, w, h);
        const chosen = same(spot);
        if (app.silenced(spot.name, spot.head)) surface.path(`M${spot.x} ${spot.y}l${spot.size} ${spot.size}m0 ${-spot.size}l${-spot.size} ${spot.size}`, { stroke: colours.accent, thick: 2 });
        if (chosen) surface.rect(spot.x - 2.5, spot.y - 2.5, spot.size + 5, spot.size + 5, { stroke: colours.accent, thick: 2.5, round: 4 });
        const below = spot.y + spot.size + 11;
        surface.rect(spot.x, below - 3, 6, 6, { fill: headColour(spot.head), round: 3 });
        const label = rank ? shorten(`${brief(spot.name)} ${spot.head}`, 10, spot.size - 10) : String(spot.head);
        surface.text(spot.x + 10, below, label, { size: rank ? 10 : 11, fill: chosen ? colours.accent : colours.quiet, weight: chosen ? 600 : "normal" });
        if (rank) {
          const value = spot.map[rank][spot.head];
          surface.rect(spot.x, below + 10, spot.size, 3, { fill: colours.line, round: 1.5 });
          surface.rect(spot.x, below + 10, (spot.size * value) / most, 3, { fill: colours.ink, round: 1.5 });
        }
      }
    }

    return {
      update() {
        const trace = app.trace;
        const bytes = app.wait(trace.thumbs());
        if (!bytes) return;
        draw(trace, bytes);
        const box = lay(trace, app.room());
        paint(new Sheet(canvas, box.wide, box.high), trace, box);
        this.box = box;
        app.mark("overview");
      },
      picture: () => ({ wide: lay(app.trace, app.room()).wide, high: lay(app.trace, app.room()).high, paint: (surface) => paint(surface, app.trace, lay(app.trace, app.room())) }),
      table: () => [
        ["attention", "head", ...Object.values(FIGURES).map(([name]) => name)],
        ...app.trace.maps.flatMap((map) => Array.from({ length: map.heads }, (_, head) => [map.name, String(head), ...Object.keys(FIGURES).map((figure) => String(map[figure][head]))])),
      ],
      figures: (map, head) => Object.entries(FIGURES).map(([id, [name, what]]) => [name, number(head < 0 ? map[id].reduce((a, b) => a + b, 0) / map.heads : map[id][head], 2), what]),
    };
  },
};
