import assert from "node:assert/strict";
import { test } from "node:test";
import { TextCache, TileCache } from "../../src/clearhead/viewer/web/cache.js";

const layer = { tab: "t", head: "0.0", reduce: "max", seq: 0, batch: 0 };
const tick = () => new Promise((done) => setTimeout(done, 0));

function slowSource() {
  const calls = [];
  return {
    calls,
    tile: (tab, head, reduce, z, ty, tx, where, { signal }) => new Promise((done, failed) => {
      const call = { z, ty, tx, done: () => done(new Uint16Array(65536)), fail: () => failed(new Error("no")), aborted: false };
      signal.addEventListener("abort", () => { call.aborted = true; failed(new DOMException("", "AbortError")); });
      calls.push(call);
    }),
  };
}

test("one request a tile, whoever asks; few at once; the most wanted first", async () => {
  const source = slowSource();
  const cache = new TileCache(source, 1e9, 2);
  const got = [];
  cache.want("a", layer, [{ z: 3, ty: 0, tx: 0 }, { z: 1, ty: 0, tx: 0 }, { z: 1, ty: 0, tx: 1 }], (t) => got.push(["a", t.z]));
  cache.want("b", layer, [{ z: 3, ty: 0, tx: 0 }], (t) => got.push(["b", t.z]));
  assert.deepEqual(source.calls.map((c) => c.z), [3, 1]);
  source.calls[0].done();
  await tick();
  assert.deepEqual(got, [["a", 3], ["b", 3]]);
  assert.equal(source.calls.length, 3);
  assert.ok(cache.has(layer, 3, 0, 0));
});

test("what nobody wants any more is given up", async () => {
  const source = slowSource();
  const cache = new TileCache(source, 1e9, 4);
  cache.want("a", layer, [{ z: 2, ty: 0, tx: 0 }, { z: 2, ty: 0, tx: 1 }]);
  cache.want("b", layer, [{ z: 2, ty: 0, tx: 1 }]);
  cache.want("a", layer, [{ z: 0, ty: 5, tx: 5 }]);
  assert.deepEqual(source.calls.map((c) => c.aborted), [true, false, false]);
  cache.forget("b");
  assert.equal(source.calls[1].aborted, true);
  await tick();
  assert.equal(cache.active, 1);
});

test("the oldest goes when the budget is full, what was used stays", async () => {
  const source = { tile: async () => new Uint16Array(65536) };
  const cache = new TileCache(source, 3 * 131072);
  for (const tx of [0, 1, 2]) await cache.load(layer, 0, 0, tx);
  cache.get(layer, 0, 0, 0);
  await cache.load(layer, 0, 0, 3);
  assert.deepEqual([0, 1, 2, 3].map((tx) => cache.has(layer, 0, 0, tx)), [true, false, true, true]);
});

test("a failure is told, not asked again at once; a short tile is a failure", async () => {
  let asked = 0;
  const cache = new TileCache({ tile: async () => { asked += 1; return new Uint16Array(5); } });
  await assert.rejects(cache.load(layer, 0, 0, 0), /65536/);
  await assert.rejects(cache.load(layer, 0, 0, 0), /65536/);
  assert.equal(asked, 1);
});

test("who has given up asks for nothing, before or after", async () => {
  const signals = [];
  const cache = new TileCache({ tile: (tab, head, reduce, z, ty, tx, where, { signal }) => new Promise(() => { signals.push(signal); }) });
  const control = new AbortController();
  const one = cache.load(layer, 0, 0, 0, control.signal);
  control.abort();
  await assert.rejects(one, { name: "AbortError" });
  await assert.rejects(cache.load(layer, 0, 0, 1, control.signal), { name: "AbortError" });
  assert.deepEqual(signals.map(({ aborted }) => aborted), [true]);
});

test("texts come page by page, once", async () => {
  let asked = 0;
  const source = { tokens: async (tab, where, from, to) => { asked += 1; const texts = Array.from({ length: Math.min(to, 5000) - from }, (_, n) => `k${from + n}`); return { from, to, total: 5000, texts }; } };
  const text = new TextCache(source).of("t", { seq: 0, batch: 0 });
  assert.equal(text.token(10), null);
  await text.need(0, 5000);
  assert.equal(text.token(10), "k10");
  assert.equal(text.token(4999), "k4999");
  assert.equal(text.token(5000), undefined);
  assert.equal(asked, 2);
  await text.need(4000, 9000);
  assert.equal(asked, 2);
});

test("along the axes stands what is known of them", async () => {
  const source = { tokens: async (tab, where, from) => ({ from, to: 4, total: 4, texts: ["a", "b", "c", "d"] }) };
  const texts = new TextCache(source);
  await texts.of("t", { seq: 0, batch: 0 }).need(0, 4);
  const along = (info) => texts.alongAxes("t", { seq: 0, batch: 0 }, info);
  const sampled = along({ rowAt: [1, 3], queryTexts: true, keyTexts: true });
  assert.deepEqual([sampled.query(1), sampled.key(1), sampled.at(1)], ["d", "b", 3]);
  const across = along({ rowAt: null, queryTexts: false, keyTexts: true });
  assert.deepEqual([across.query(1), across.key(1), across.at], [undefined, "b", null]);
});
