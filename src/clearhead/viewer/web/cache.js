// What was fetched: tiles within a byte budget, and texts page by page. Requests in flight are shared,
// and given up when nobody waits for them any more.

const TILE_BYTES = 131072;

// Tiles of any head, least recently used thrown away first. A tile is { codes, z, ty, tx }.
export class TileCache {
  constructor(source, budget = 96 * 1024 * 1024, parallel = 6) {
    this.source = source;
    this.room = Math.max(1, Math.floor(budget / TILE_BYTES));
    this.parallel = parallel;
    this.kept = new Map();
    this.waiting = new Map();
    this.active = 0;
    this.failed = new Map();
  }

  // layer = { tab, head, reduce, seq, batch }: which picture a tile belongs to.
  key(layer, z, ty, tx) {
    return `${layer.tab}\n${layer.head}\n${layer.reduce}\n${layer.seq}\n${layer.batch}\n${z}/${ty}/${tx}`;
  }
  get(layer, z, ty, tx) {
    const key = this.key(layer, z, ty, tx);
    const tile = this.kept.get(key);
    if (tile) { this.kept.delete(key); this.kept.set(key, tile); }
    return tile;
  }
  has(layer, z, ty, tx) { return this.kept.has(this.key(layer, z, ty, tx)); }

  // Says which tiles `who` wants now, the most wanted first; arrived(tile) is called for each that comes,
  // failed(error) for one that does not. What `who` wanted before and wants no more is given up.
  want(who, layer, list, arrived, failed) {
    const keys = new Set(list.map(({ z, ty, tx }) => this.key(layer, z, ty, tx)));
    for (const job of this.waiting.values()) {
      if (job.wanted.has(who) && !keys.has(job.key)) {
        job.wanted.delete(who);
        if (!job.wanted.size) this.drop(job);
      }
    }
    list.forEach(({ z, ty, tx }, rank) => {
      const key = this.key(layer, z, ty, tx);
      if (this.kept.has(key)) return;
      const refused = this.failed.get(key);
      if (refused && performance.now() - refused.when < 3000) { failed?.(refused.error); return; }
      let job = this.waiting.get(key);
      if (!job) this.waiting.set(key, job = { key, layer, z, ty, tx, wanted: new Map(), control: new AbortController(), running: false, rank });
      job.rank = rank;
      job.wanted.set(who, { arrived, failed });
    });
    this.pump();
  }
  // One tile, whoever else wants it.
  load(layer, z, ty, tx, signal) {
    const kept = this.get(layer, z, ty, tx);
    if (kept) return Promise.resolve(kept);
    const who = {};
    const gone = () => new DOMException("given up", "AbortError");
    if (signal?.aborted) return Promise.reject(gone());
    return new Promise((done, failed) => {
      signal?.addEventListener("abort", () => { this.forget(who); failed(gone()); }, { once: true });
      this.want(who, layer, [{ z, ty, tx }], done, failed);
    });
  }
  forget(who) { this.want(who, { }, [], null, null); }

  drop(job) {
    this.waiting.delete(job.key);
    job.control.abort();
  }
  pump() {
    if (this.active >= this.parallel) return;
    const next = [...this.waiting.values()].filter((job) => !job.running).sort((a, b) => a.rank - b.rank);
    for (const job of next.slice(0, this.parallel - this.active)) this.run(job);
  }
  async run(job) {
    job.running = true;
    this.active += 1;
    const { layer, z, ty, tx } = job;
    try {
      const codes = await this.source.tile(layer.tab, layer.head, layer.reduce, z, ty, tx, { seq: layer.seq, batch: layer.batch }, { signal: job.control.signal });
      if (codes.length !== 65536) throw new Error(`a tile of ${codes.length} pixels came where 65536 were expected`);
      this.failed.delete(job.key);
      const tile = { codes, z, ty, tx };
      this.keep(job.key, tile);
      if (this.waiting.get(job.key) === job) this.waiting.delete(job.key);
      for (const { arrived } of job.wanted.values()) arrived?.(tile);
    } catch (error) {
      if (this.waiting.get(job.key) === job) this.waiting.delete(job.key);
      if (error?.name !== "AbortError") {
        this.failed.set(job.key, { when: performance.now(), error });
        for (const { failed } of job.wanted.values()) failed?.(error);
      }
    } finally {
      this.active -= 1;
      this.pump();
    }
  }
  keep(key, tile) {
    this.kept.delete(key);
    this.kept.set(key, tile);
    while (this.kept.size > this.room) {
      this.kept.delete(this.kept.keys().next().value);
    }
  }
}

const PAGE = 4096;

// The tokens of one sequence, fetched in pages where they are looked at.
class TokenText {
  constructor(source, tab, where) {
    Object.assign(this, { source, tab, where, total: null, pages: new Map(), asked: new Map(), watchers: new Set() });
  }
  // The raw text of a token; null while it is on its way, and then it is asked for; undefined if it is not known.
  token(n) {
    const page = this.pages.get(Math.floor(n / PAGE));
    if (!page) { this.need(n, n + 1).catch(() => {}); return null; }
    return page.texts[n % PAGE];
  }
  // Resolves when tokens from..to are there.
  need(from, to) {
    const first = Math.floor(Math.max(0, from) / PAGE);
    const last = Math.floor(Math.max(0, to - 1) / PAGE);
    const all = [];
    for (let n = first; n <= last; n += 1) {
      if (this.pages.has(n) || (this.total !== null && n * PAGE >= Math.max(this.total, 1))) continue;
      let asked = this.asked.get(n);
      if (!asked) {
        asked = this.source.tokens(this.tab, this.where, n * PAGE, (n + 1) * PAGE, {}).then((page) => {
          this.total = page.total;
          this.pages.set(n, page);
          this.asked.delete(n);
          this.watchers.forEach((watch) => watch());
        }, (error) => { setTimeout(() => this.asked.delete(n), 3000); throw error; });
        this.asked.set(n, asked);
      }
      all.push(asked);
    }
    return Promise.all(all);
  }
  watch(call) { this.watchers.add(call); return () => this.watchers.delete(call); }
}

export class TextCache {
  constructor(source) { this.source = source; this.texts = new Map(); }
  of(tab, where) {
    const key = `${tab}\n${where.seq}\n${where.batch}`;
    let text = this.texts.get(key);
    if (!text) {
      if (this.texts.size >= 8) this.texts.delete(this.texts.keys().next().value);
      this.texts.set(key, text = new TokenText(this.source, tab, where));
    }
    return text;
  }
  // What stands along the two axes of a head's map, as far as it is known: in cross-attention they are two texts,
  // and where only some rows were kept, `at` says at which position a row stands.
  alongAxes(tab, where, { rowAt, queryTexts, keyTexts }) {
    const text = this.of(tab, where);
    const at = rowAt ? (i) => rowAt[i] : null;
    return {
      at, query: (i) => (queryTexts ? text.token(at ? at(i) : i) : undefined), key: (j) => (keyTexts ? text.token(j) : undefined),
      watch: (call) => text.watch(call),
    };
  }
}
