// Halves and brains as floats, and where a piece of text stands.
import assert from "node:assert/strict";
import { test } from "node:test";
import { brains, halves, placesOf } from "../../src/clearhead/viewer/web/packed.js";

test("float16: ends, the smallest, what is no number", () => {
  const bits = Uint16Array.of(0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0001, 0x0400, 0x7c00, 0xfc00, 0x7e00, 0x3555);
  assert.deepEqual([...halves(bits)], [0, -0, 1, -2, 65504, 2 ** -24, 2 ** -14, Infinity, -Infinity, NaN, Math.fround(0.333251953125)]);
});

test("bfloat16 is the upper half of a float32", () => {
  const bits = Uint16Array.of(0x3f80, 0xbf80, 0x7f80, 0x7fc0, 0x0001);
  assert.deepEqual([...brains(bits)], [1, -1, Infinity, NaN, Math.fround(2 ** -133)]);
});

test("a piece of text is found where it begins, across tokens, capitals where they are given", () => {
  const tokens = ["The", "\u0120cat", " s", "at", ".", "\u010a", "the", " CAT"];
  assert.deepEqual(placesOf("cat", tokens), [1, 7]);
  assert.deepEqual(placesOf("CAT", tokens), [7]);
  assert.deepEqual(placesOf("cat sat", tokens), [1]);
  assert.deepEqual(placesOf(".\nthe", tokens), [4]);
  assert.deepEqual(placesOf("dog", tokens), []);
  assert.deepEqual(placesOf("", tokens), []);
  assert.deepEqual(placesOf("a", ["aaa", "a"]), [0, 1]);
  assert.deepEqual(placesOf("x", []), []);
});
