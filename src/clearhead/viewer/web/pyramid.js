// The tiles of one head inside an offline file. Pixels of one cell are computed from its exact weights,
// larger ones are made of four tiles of the level below; from the level of its overview on, where it
// has one, of that. In slices, so that the page stays awake, and one tile after the other.
import { HIDDEN, NO_NUMBER, decodeTable, encodeWeight } from "./codes.js";

const TILE_SIDE = 256;
const SLICE = 12; // milliseconds of work before others have a turn
const KEPT = 96; // tiles, of 384 KiB each

// weights: HeadWeights, or null; overview: { z, rows, columns, max, mean }, codes of all pixels of
// level z, or null.
export class HeadPyramid {
  constructor(T, S, weights, overview) {
    Object.assign(this, { T, S, weights, overview });
    this.tiles = new Map();
    this.turn = Promise.resolve();
    this.done = 0;
    this.total = 1;
    this.since = 0;
  }

  // The codes of a tile, Uint16Array(65536); `reduce` is "max" or "mean".
  tile(reduce, z, ty, tx, signal) {
    return this.inTurn(async () => {
      this.done = 0;
      this.total = 4 ** z;
      const tile = await this.made(z, ty, tx, signal);
      this.done = this.total;
      return reduce === "max" ? tile.codes.slice() : this.means(tile, z, ty, tx);
    }, signal);
  }
  inTurn(work, signal) {
    const mine = this.turn.then(() => {
      if (signal?.aborted) throw new DOMException("given up", "AbortError");
      this.since = performance.now();
      return work();
    });
    this.turn = mine.catch(() => {});
    return mine;
  }
  async rest(signal) {
    await new Promise((done) => { setTimeout(done); });
    if (signal?.aborted) throw new DOMException("given up", "AbortError");
    this.since = performance.now();
  }

  async made(z, ty, tx, signal) {
    const key = `${z}/${ty}/${tx}`;
    const kept = this.tiles.get(key);
    if (kept) { this.tiles.delete(key); this.tiles.set(key, kept); this.done += 4 ** z; return kept; }
    const tile = { codes: new Uint16Array(TILE_SIDE * TILE_SIDE), sums: new Float32Array(TILE_SIDE * TILE_SIDE) };
    if (this.nothing(z, ty, tx)) this.done += 4 ** z;
    else if (this.overview?.z === z) { this.copy(tile, ty, tx); this.done += 4 ** z; }
    else if (z === 0) await this.fill(tile, ty, tx, signal);
    else for (let part = 0; part < 4; part += 1) {
      const [down, right] = [part >> 1, part & 1];
      merge(tile, await this.made(z - 1, 2 * ty + down, 2 * tx + right, signal), down, right);
    }
    this.tiles.set(key, tile);
    for (const oldest of this.tiles.keys()) {
      if (this.tiles.size <= KEPT) break;
      this.tiles.delete(oldest);
    }
    return tile;
  }

  // Whether a tile lies outside of the map, or of what any of its rows sees.
  nothing(z, ty, tx) {
    const size = TILE_SIDE * 2 ** z;
    const [i0, i1, j0, j1] = [ty * size, Math.min((ty + 1) * size, this.T), tx * size, (tx + 1) * size];
    if (i0 >= i1 || j0 >= this.S) return true;
    const { before = null, after = null, offset = 0 } = this.weights ?? {};
    return (after !== null && i1 - 1 + offset + after < j0) || (before !== null && i0 + offset - before >= j1);
  }

  copy(tile, ty, tx) {
    const { z, rows, columns, max, mean } = this.overview;
    const weights = decodeTable();
    for (let y = 0; y < Math.min(TILE_SIDE, rows - ty * TILE_SIDE); y += 1) {
      for (let x = 0; x < Math.min(TILE_SIDE, columns - tx * TILE_SIDE); x += 1) {
        const [at, from] = [y * TILE_SIDE + x, (ty * TILE_SIDE + y) * columns + tx * TILE_SIDE + x];
        tile.codes[at] = max[from];
        tile.sums[at] = weights[mean[from]] * this.cells(z, ty, tx, y, x);
      }
    }
  }
  async fill(tile, ty, tx, signal) {
    const scores = new Float64Array(TILE_SIDE);
    const j0 = tx * TILE_SIDE;
    const j1 = Math.min(j0 + TILE_SIDE, this.S);
    for (let i = ty * TILE_SIDE; i < Math.min((ty + 1) * TILE_SIDE, this.T); i += 1) {
      if (performance.now() - this.since > SLICE) await this.rest(signal);
      this.weights.scores(i, j0, j1, scores);
      const sum = this.weights.sum(i);
      const start = (i - ty * TILE_SIDE) * TILE_SIDE;
      for (let x = 0; x < j1 - j0; x += 1) {
        if (scores[x] === -Infinity) continue;
        const p = Math.exp(scores[x] - sum);
        tile.codes[start + x] = encodeWeight(p);
        tile.sums[start + x] = p;
      }
    }
    this.done += 1;
  }

  // How many cells of the map pixel (y, x) of a tile has.
  cells(z, ty, tx, y, x) {
    const n = 2 ** z;
    return Math.min(n, this.T - (ty * TILE_SIDE + y) * n) * Math.min(n, this.S - (tx * TILE_SIDE + x) * n);
  }
  means({ codes, sums }, z, ty, tx) {
    return Uint16Array.from(codes, (code, at) => (code === HIDDEN || code === NO_NUMBER ? code
      : encodeWeight(sums[at] / this.cells(z, ty, tx, at >> 8, at & 255))));
  }

  // The sum of each key's weights over the rows; `real` says which of them are no padding, or null.
  received(real, signal) {
    return this.inTurn(async () => {
      const total = new Float64Array(this.S);
      const scores = new Float64Array(this.S);
      this.total = this.T;
      for (let i = 0; i < this.T; i += 1) {
        this.done = i;
        if (performance.now() - this.since > SLICE) await this.rest(signal);
        if (real && !real[i]) continue;
        const [from, to] = this.weights.span(i);
        this.weights.scores(i, from, to, scores);
        const sum = this.weights.sum(i);
        for (let j = from; j < to; j += 1) if (scores[j - from] !== -Infinity) total[j] += Math.exp(scores[j - from] - sum);
      }
      this.done = this.T;
      return Float32Array.from(total);
    }, signal);
  }
}

// Puts a tile into one quarter of the tile above: the largest code, and the sum.
function merge(tile, { codes, sums }, down, right) {
  const half = TILE_SIDE / 2;
  for (let y = 0; y < half; y += 1) {
    for (let x = 0; x < half; x += 1) {
      const at = (down * half + y) * TILE_SIDE + right * half + x;
      const from = 2 * y * TILE_SIDE + 2 * x;
      tile.codes[at] = Math.max(codes[from], codes[from + 1], codes[from + TILE_SIDE], codes[from + TILE_SIDE + 1]);
      tile.sums[at] = sums[from] + sums[from + 1] + sums[from + TILE_SIDE] + sums[from + TILE_SIDE + 1];
    }
  }
}
