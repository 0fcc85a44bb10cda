// The source of numbers inside one file: bytes that offline.py packed, from which this page computes
// every weight by itself.
//
//   said        { about, grid, texts, pieces, maps, blobs }, JSON
//   bytesOf(n)  the text of blob n: base64, of gzip where said.blobs[n].gzip
import { HeadPyramid } from "./pyramid.js";
import { HeadWeights } from "./softmax.js";

const LONGEST = 4096; // tokens of one answer
const FOUND = 10000; // places of a search
const KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array };

export function packedSource(said, bytesOf) {
  const heads = new Map(); // at most HELD of them, the latest
  const HELD = 8;

  const textOf = ({ seq, batch } = {}) => {
    const found = said.texts.find((text) => text.seq === (seq ?? said.texts[0].seq) && text.batch === (batch ?? 0));
    if (!found) throw new Error(`there is no sequence ${seq}, batch element ${batch}, in this file`);
    return found;
  };
  const mapOf = (head, { seq, batch } = {}) => {
    const text = textOf({ seq, batch });
    const found = said.maps[`${head}/${text.seq}/${text.batch}`];
    if (!found) throw new Error(`there is no head ${head} in this file`);
    return found;
  };

  // What is computed of one head: { info, weights, pyramid, realRows }.
  const opened = async (head, where) => {
    const text = textOf(where);
    const key = `${head}/${text.seq}/${text.batch}`;
    let made = heads.get(key);
    if (!made) made = open(mapOf(head, where));
    heads.delete(key);
    heads.set(key, made);
    for (const oldest of heads.keys()) { if (heads.size <= HELD) break; heads.delete(oldest); }
    return made;
  };
  const open = async ({ info, packed, overview }) => {
    let weights = null;
    if (packed) {
      const given = { ...packed };
      for (const name of ["q", "k", "lse", "low", "real", "mine", "numbers"]) given[name] = await blob(packed[name]);
      for (const name of ["mask", "bias"]) given[name] = packed[name] && { ...packed[name], data: await blob(packed[name].data) };
      weights = new HeadWeights(given);
    }
    const seen = overview && { ...overview, max: await blob(overview.max), mean: await blob(overview.mean) };
    return { info, weights, pyramid: new HeadPyramid(info.T, info.S, weights, seen), realRows: packed ? await blob(packed.realRows) : null };
  };
  const exact = async (head, where) => {
    const found = await opened(head, where);
    if (!found.weights) throw new Error(`this file holds no q and k of head ${head}, only its overview: ${said.about.tabs[0].command}`);
    return found;
  };

  const blob = async (n) => {
    if (n === null || n === undefined) return null;
    const { kind, gzip } = said.blobs[n];
    let bytes = unpacked(bytesOf(n));
    if (gzip) bytes = new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
    if (kind === "f2") return halves(new Uint16Array(bytes.buffer));
    if (kind === "b2") return brains(new Uint16Array(bytes.buffer));
    return new KINDS[kind](bytes.buffer);
  };

  return {
    kind: "packed",
    about: async () => said.about,
    grid: async () => said.grid,
    head: async (tab, head, where) => mapOf(head, where).info,
    async tokens(tab, where, from, to) {
      const text = textOf(where);
      const [a, b] = [Math.max(0, from), Math.min(to, from + LONGEST)];
      const texts = text.ids.slice(a, b).map((id) => said.pieces[id]);
      return { from: a, to: a + texts.length, total: text.ids.length, texts };
    },
    async search(tab, q, where) {
      const text = textOf(where);
      const places = placesOf(q, text.ids.map((id) => said.pieces[id]));
      return { positions: places.slice(0, FOUND), total: places.length };
    },
    async tile(tab, head, reduce, z, ty, tx, where, { signal } = {}) {
      const { info, pyramid } = await opened(head, where);
      if (!info.hasMap) throw new Error(`there is no map of head ${head}`);
      if (z < (info.finest ?? 0)) throw new Error(`this file holds no pixels of head ${head} as small as that`);
      return pyramid.tile(reduce, z, ty, tx, signal);
    },
    async cells(tab, head, i0, i1, j0, j1, where) {
      const { weights } = await exact(head, where);
      const [n, m] = [i1 - i0, j1 - j0];
      if (!(n > 0 && m > 0 && n * m <= LONGEST)) throw new Error(`at most ${LONGEST} weights at once; ${n} x ${m} were asked for`);
      const found = { weights: new Float32Array(n * m), scores: new Float32Array(n * m) };
      for (let i = i0; i < i1; i += 1) {
        weights.scores(i, j0, j1, found.scores, (i - i0) * m);
        found.weights.set(weights.row(i, j0, j1, 0), (i - i0) * m);
      }
      return found;
    },
    async rows(tab, head, where) {
      const { info, curves } = mapOf(head, where);
      const all = await blob(curves);
      if (!all) throw new Error(`the rows of head ${head} were not kept`);
      const part = (n) => all.subarray(n * info.T, (n + 1) * info.T);
      return { entropy: part(0), normalized: part(1), maxProb: part(2), visible: part(3) };
    },
    async received(tab, head, where, { signal } = {}) {
      const { received } = mapOf(head, where);
      if (received !== null && received !== undefined) return blob(received);
      const found = await exact(head, where);
      found.received ??= found.pyramid.received(found.realRows, signal).catch((error) => { found.received = null; throw error; });
      return found.received;
    },
    row: async (tab, head, i, where) => (await exact(head, where)).weights.row(i),
    column: async (tab, head, j, where) => (await exact(head, where)).weights.column(j),
    async link(tab, i, j, where, { signal } = {}) {
      const found = [];
      for (const { head, role } of said.grid.heads) {
        if (signal?.aborted) throw new DOMException("given up", "AbortError");
        const { info } = said.maps[`${head}/${textOf(where).seq}/${textOf(where).batch}`] ?? { info: {} };
        if (!info.hasMap || info.cross) continue;
        const { weights } = await exact(head, where);
        const row = info.rowAt ? info.rowAt.indexOf(i) : i;
        if (row < 0 || row >= info.T || j >= info.S) continue;
        const placed = weights.placed(row, j);
        if (placed) found.push({ head, role, ...placed, uniform: 1 / placed.visible });
      }
      if (!found.length) throw new Error(`no head lets the query at ${i} see key ${j}`);
      return found.sort((a, b) => b.weight - a.weight);
    },
    async progress(tab, head, reduce, where) {
      const { pyramid } = await opened(head, where);
      return { done: pyramid.done / pyramid.total, what: "computing weights" };
    },
  };
}

function unpacked(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let n = 0; n < letters.length; n += 1) bytes[n] = letters.charCodeAt(n);
  return bytes;
}

// float16 and bfloat16, which JavaScript has no arrays of everywhere, as float32.
export function halves(bits) {
  return Float32Array.from(bits, (b) => {
    const [sign, exponent, rest] = [b & 0x8000 ? -1 : 1, (b >> 10) & 31, b & 1023];
    if (exponent === 31) return rest ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
  });
}
export function brains(bits) {
  return new Float32Array(Uint32Array.from(bits, (b) => b << 16).buffer);
}

// The tokens in which a piece of the running text begins; capitals count if it has any.
export function placesOf(wanted, tokens) {
  const same = wanted === wanted.toLowerCase() ? (text) => text.toLowerCase() : (text) => text;
  const pieces = tokens.map((token) => same(token.replace(/[Ġ▁]/g, " ").replace(/Ċ/g, "\n")));
  const text = pieces.join("");
  const places = [];
  let [n, end] = [0, pieces[0]?.length ?? 0];
  for (let at = wanted ? text.indexOf(wanted) : -1; at >= 0; at = text.indexOf(wanted, at + 1)) {
    while (end <= at) { n += 1; end += pieces[n].length; }
    if (places.at(-1) !== n) places.push(n);
  }
  return places;
}
