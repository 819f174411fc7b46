// @ts-check
// Where traces come from: a server that sends bytes on demand, or the page itself, when it was saved as one file.

const WEIGHTS = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2); // they travel as round(255 · √w)
const KEPT = 64 << 20; // bytes of heads and rows in memory
const ROWS = 8; // asked for at once
export const MEAN = -1;

/** @param {Uint8Array} bytes */
function decoded(bytes) {
  const found = new Float32Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) found[i] = WEIGHTS[bytes[i]];
  return found;
}

/** One sentence, one answer, and what was looked at. */
export class Trace {
  /** @param {string} id @param {any} header @param {(what: string, kind: "json" | "bytes") => Promise<any>} fetch */
  constructor(id, header, fetch) {
    this.id = id;
    this.header = header;
    this.fetch = fetch;
    this.tokens = header.tokens;
    /** @type {any[]} */
    this.maps = header.maps;
    this.byName = new Map(header.maps.map((map) => [map.name, map]));
    this.cache = new Map();
    this.held = 0; // bytes
  }

  /** @param {string} name */
  map(name) {
    return this.byName.get(name) ?? this.byName.get(this.header.main);
  }

  /** Attentions that look from target to source. */
  get crosses() {
    return this.maps.filter((map) => map.queries === "target" && map.keys === "source");
  }

  /** @param {string} name */
  queries(name) {
    return this.tokens[this.map(name).queries];
  }

  /** @param {string} name */
  keys(name) {
    return this.tokens[this.map(name).keys];
  }

  /** What `make` gives, remembered; a promise until it is there. @param {string} key @param {() => Promise<any>} make */
  once(key, make) {
    if (this.cache.has(key)) {
      const found = this.cache.get(key);
      this.cache.delete(key);
      this.cache.set(key, found);
      return found;
    }
    const promise = make().then((value) => { this.keep(key, value); return value; });
    promise.catch(() => this.cache.delete(key));
    this.cache.set(key, promise);
    return promise;
  }

  /** What was asked for longest ago makes room. @param {string} key @param {any} value */
  keep(key, value) {
    this.cache.set(key, value);
    this.held += value.byteLength ?? 0;
    for (const [old, { byteLength = 0 }] of this.cache) {
      if (this.held <= KEPT || old === key) break;
      this.cache.delete(old);
      this.held -= byteLength;
    }
  }

  /** uint8 (maps, heads, side, side) */
  thumbs() {
    return this.once("thumbs", async () => new Uint8Array(await this.fetch("thumbs", "bytes")));
  }

  /** float32 (queries · keys), to be looked at. @param {string} name @param {number} head */
  head(name, head) {
    const path = `head/${encodeURIComponent(name)}/${head}`;
    return this.once(path, async () => decoded(new Uint8Array(await this.fetch(path, "bytes"))));
  }

  /** float32 (keys), exact, to be printed. @param {string} name @param {number} head @param {number} query */
  row(name, head, query) {
    const path = `row/${encodeURIComponent(name)}/${head}/${query}`;
    return this.once(path, async () => new Float32Array(await this.fetch(path, "bytes")));
  }

  /** float32 (queries · keys), exact: all rows, some at a time. @param {string} name @param {number} head */
  async exact(name, head) {
    const [queries, keys] = this.map(name).shape;
    const found = new Float32Array(queries * keys);
    for (let start = 0; start < queries; start += ROWS)
      await Promise.all(Array.from({ length: Math.min(ROWS, queries - start) }, async (_, i) => found.set(await this.row(name, head, start + i), (start + i) * keys)));
    return found;
  }

  /** @param {string} name @param {number} head @param {number} query */
  arithmetic(name, head, query) {
    const path = `arithmetic/${encodeURIComponent(name)}/${head}/${query}`;
    return this.once(path, () => this.fetch(path, "json"));
  }

  search() {
    return this.once("search", () => this.fetch("search", "json"));
  }

  positions() {
    return this.once("positions", async () => (await this.fetch("positions", "json")).positions);
  }
}

const GONE = "The server does not answer any more. Start it again with: regard serve RUN, and open the address that it prints.";

/** A server of this page. */
export class Served {
  live = true;

  constructor() {
    this.token = new URLSearchParams(location.search).get("token") ?? "";
    this.traces = new Map();
  }

  /** @param {string} path @param {RequestInit} [how] */
  async ask(path, how = {}) {
    const headers = { ...(how.headers ?? {}), ...(this.token ? { authorization: `Bearer ${this.token}` } : {}) };
    const answer = await fetch(`v1/${path}`, { ...how, headers }).catch(() => { throw new Error(GONE); });
    if (!answer.ok) throw new Error(await reason(answer));
    return answer;
  }

  async models() {
    return (await (await this.ask("models")).json()).data;
  }

  /** Text in, the id of a new trace out. @param {any} body @returns {Promise<string>} */
  async make(body) {
    const how = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    return (await (await this.ask("trace", how)).json()).id;
  }

  /** @param {string} id @returns {Promise<Trace>} */
  async trace(id) {
    if (!this.traces.has(id)) {
      const place = `trace/${encodeURIComponent(id)}`;
      const header = await (await this.ask(place)).json();
      const get = async (what, kind) => {
        const answer = await this.ask(`${place}/${what}`);
        return kind === "json" ? answer.json() : answer.arrayBuffer();
      };
      this.traces.set(id, new Trace(id, header, get));
    }
    return this.traces.get(id);
  }

  /** The course of a training, and what it looked at along the way. @param {string} run */
  async training(run) {
    return (await this.ask(`runs/${encodeURIComponent(run)}/training`)).json();
  }
}

/** @param {Response} answer */
async function reason(answer) {
  try {
    const said = await answer.json();
    return String(said.error?.message ?? said.detail ?? said.message ?? answer.statusText);
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

/** What was saved with the page. */
export class Saved {
  live = false;

  /** @param {any} data */
  constructor(data) {
    this.data = data;
    this.traces = new Map(data.traces.map((each) => [each.id, new Trace(each.id, each.header, (what) => saved(each, what))]));
  }

  async models() {
    return [];
  }

  /** @param {string} id @returns {Promise<Trace>} */
  async trace(id) {
    return this.traces.get(id) ?? this.traces.values().next().value;
  }

  /** @param {any} _ @returns {Promise<string>} */
  async make(_) {
    throw new Error("This page was saved; to ask again, serve the model: regard serve RUN.");
  }

  async training() {
    if (!this.data.training) throw new Error("The course of the training was not saved with this page.");
    return this.data.training;
  }
}

/** The same answers as a server's, from what is here. @param {any} each @param {string} what */
async function saved(each, what) {
  const [kind, encoded, head, query] = what.split("/");
  if (kind === "thumbs") return bytes(each.thumbs).buffer;
  if (kind === "search") return each.search;
  if (kind === "positions") return { positions: each.positions };
  const name = decodeURIComponent(encoded);
  if (!(name in each.maps)) throw new Error(`${name} was too large to be saved with the page.`);
  const map = each.header.maps.find((one) => one.name === name);
  const [queries, keys] = map.shape;
  const weights = mixed(floats(each, name), map.heads, queries * keys, Number(head));
  if (kind === "head") return Uint8Array.from(weights, (w) => Math.round(255 * Math.sqrt(w))).buffer;
  const row = weights.slice(Number(query) * keys, (Number(query) + 1) * keys);
  return kind === "row" ? row.buffer : compared(each.parts[name], Number(head), Number(query), keys, row);
}

/** @param {any} each @param {string} name @returns {Float32Array} */
function floats(each, name) {
  each.decoded ??= {};
  return (each.decoded[name] ??= new Float32Array(bytes(each.maps[name]).buffer));
}

/** One head, or the mean of all. @param {Float32Array} all */
function mixed(all, heads, size, head) {
  if (head !== MEAN) return all.slice(head * size, (head + 1) * size);
  const mean = new Float32Array(size);
  for (let i = 0; i < all.length; i++) mean[i % size] += all[i] / heads;
  return mean;
}

/** How one row came about, from the queries, keys and values that were saved. */
function compared(part, head, query, keys, row) {
  const [q, k, v] = ["q", "k", "v"].map((name) => new Float32Array(bytes(part[name]).buffer));
  const [queries, dim, wide] = part.shape;
  const own = [...q.slice((head * queries + query) * dim, (head * queries + query + 1) * dim)];
  const cut = (all, width) => Array.from({ length: keys }, (_, i) => [...all.slice((head * keys + i) * width, (head * keys + i + 1) * width)]);
  const [k2, v2] = [cut(k, dim), cut(v, wide)];
  const dots = part.scale === null ? null : k2.map((key) => key.reduce((sum, x, d) => sum + x * own[d], 0));
  const scores = dots ? dots.map((dot) => dot * part.scale)
    : [...new Float32Array(bytes(part.scores).buffer).slice((head * queries + query) * keys, (head * queries + query + 1) * keys)];
  const seen = part.seen ? [...bytes(part.seen).slice(((head % part.masks) * queries + query) * keys).slice(0, keys)].map(Boolean) : scores.map(() => true);
  const weights = [...row];
  const mix = v2[0].map((_, d) => weights.reduce((sum, w, i) => sum + w * v2[i][d], 0));
  return { q: own, k: k2, dots, scale: part.scale, scores, seen, weights, softmax: softmax(scores, seen), v: v2, mix };
}

/** Shares of what may be seen. @param {number[]} scores @param {boolean[]} seen */
export function softmax(scores, seen, temperature = 1) {
  const top = Math.max(...scores.filter((_, i) => seen[i]));
  const shares = scores.map((score, i) => (seen[i] ? Math.exp((score - top) / temperature) : 0));
  const whole = shares.reduce((a, b) => a + b, 0) || 1;
  return shares.map((share) => share / whole);
}

/** @param {string} text base64 */
function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
