// Exact weights of one head from q, k and lse under its rule: p = exp(s - lse). The order of a score is
// that of bound.py: scale, softcap, ALiBi and bias, mask. Sums in float64.

const SURE = 64; // where scores can be larger, float32 rounds them by more than a weight may show: lse is summed anew

// The rows and keys of one head and batch element. What it is given, as offline.py packs it:
//   T, S, D, q (T x D), k (S x D), lse, low (T each); scale
//   softcap, slope, sink: numbers or null; offset: row i stands at key i + offset
//   before, after: how many keys a row sees to either side of its own, or null for all
//   real (S): 1 = a key that is no padding; mine (T), numbers (S): documents of rows and keys
//   mask, bias: { data, rows, columns }, rows and columns being 1 where all share one; -Infinity hides
export class HeadWeights {
  constructor(given) {
    Object.assign(this, given);
    this.sums = new Float64Array(this.T).fill(NaN);
    this.known = new Uint8Array(this.T);
    this.longest = longest(this.k, this.S, this.D, 0);
  }

  // The keys from..to outside of which row i sees none.
  span(i) {
    const own = i + this.offset;
    const from = this.before === null ? 0 : Math.max(0, own - this.before);
    const to = this.after === null ? this.S : Math.min(this.S, own + this.after + 1);
    return from < to ? [from, to] : [0, 0];
  }

  hidden(i, j) {
    if (this.real && !this.real[j]) return true;
    if (this.mine && this.mine[i] !== this.numbers[j]) return true;
    if (this.mask && !at(this.mask, i, j)) return true;
    return Boolean(this.bias) && at(this.bias, i, j) === -Infinity;
  }

  // The score of a key that row i sees.
  score(i, j) {
    const { D, q, k } = this;
    let sum = 0;
    for (let d = 0, a = i * D, b = j * D; d < D; d += 1) sum += q[a + d] * k[b + d];
    let s = sum * this.scale;
    if (this.softcap !== null) s = this.softcap * Math.tanh(s / this.softcap);
    if (this.slope !== null) s -= this.slope * (i + this.offset - j);
    return this.bias ? s + at(this.bias, i, j) : s;
  }

  // The scores of row i on the keys j0..j1 into out[start...], -Infinity where hidden.
  scores(i, j0, j1, out, start = 0) {
    const [from, to] = this.span(i);
    const checks = this.real || this.mine || this.mask || this.bias;
    for (let j = j0; j < j1; j += 1) {
      const seen = j >= from && j < to && !(checks && this.hidden(i, j));
      out[start + j - j0] = seen ? this.score(i, j) : -Infinity;
    }
    return out;
  }

  // log sum exp of row i; with a sink, its outcome included.
  sum(i) {
    if (!this.known[i]) {
      this.known[i] = 1;
      const { lse, low, scale, D } = this;
      const sure = lse && (!Number.isFinite(lse[i]) || Math.abs(scale) * longest(this.q, i + 1, D, i) * this.longest <= SURE);
      this.sums[i] = sure ? lse[i] + low[i] : this.summed(i);
    }
    return this.sums[i];
  }
  summed(i) {
    const all = this.scores(i, 0, this.S, new Float64Array(this.S));
    let largest = this.sink ?? -Infinity;
    for (const s of all) { if (s > largest || Number.isNaN(s)) largest = s; if (Number.isNaN(largest)) return NaN; }
    if (!Number.isFinite(largest)) return largest === Infinity ? NaN : largest;
    let total = this.sink === null ? 0 : Math.exp(this.sink - largest);
    for (const s of all) total += Math.exp(s - largest);
    return largest + Math.log(total);
  }

  weight(i, j, score = this.score(i, j)) { return Math.exp(score - this.sum(i)); }

  // The weights of row i on the keys j0..j1; NaN where hidden, unless another mark is given.
  row(i, j0 = 0, j1 = this.S, hidden = NaN) {
    const scores = this.scores(i, j0, j1, new Float64Array(j1 - j0));
    const sum = this.sum(i);
    return Float32Array.from(scores, (s) => (s === -Infinity ? hidden : Math.exp(s - sum)));
  }

  column(j) {
    const out = new Float32Array(this.T).fill(NaN);
    for (let i = 0; i < this.T; i += 1) if (this.sees(i, j)) out[i] = this.weight(i, j);
    return out;
  }
  sees(i, j) {
    const [from, to] = this.span(i);
    return j >= from && j < to && !this.hidden(i, j);
  }

  // Which keys have a larger score than key j in row i, and how many are seen: { score, weight, rank, visible }.
  placed(i, j) {
    if (!this.sees(i, j)) return null;
    const scores = this.scores(i, 0, this.S, new Float64Array(this.S));
    let larger = 0;
    let visible = 0;
    for (const s of scores) { if (s !== -Infinity) visible += 1; if (s > scores[j]) larger += 1; }
    return { score: scores[j], weight: this.weight(i, j, scores[j]), rank: larger + 1, visible };
  }
}

// The largest norm of the rows from..to of n numbers each, those that are not finite left out.
function longest(x, to, n, from) {
  let most = 0;
  for (let i = from; i < to; i += 1) {
    let sum = 0;
    for (let d = i * n; d < (i + 1) * n; d += 1) sum += x[d] * x[d];
    if (sum > most && sum < Infinity) most = sum;
  }
  return Math.sqrt(most);
}

function at(table, i, j) {
  return table.data[(table.rows === 1 ? 0 : i * table.columns) + (table.columns === 1 ? 0 : j)];
}
