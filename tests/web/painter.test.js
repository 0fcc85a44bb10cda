// The numbers in the cells of a map.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MapPainter } from "../../src/clearhead/viewer/web/painter.js";

const LETTER = 9; // pixels
const rect = { x: 100, y: 50, width: 450, height: 300 };

// What is written into a view whose columns are 100 pixels wide.
function written(view) {
  const found = [];
  const ctx = { save() {}, restore() {}, beginPath() {}, rect() {}, clip() {}, measureText: (words) => ({ width: LETTER * words.length }),
    fillText: (words, x) => found.push([words, x]) };
  new MapPainter(null, [{}], { T: 512, S: 512, zmax: 1 }).paintNumbers(ctx, view, rect, rect, () => ({ weight: 6e-20, score: 1 }));
  return found;
}

test("a number that the edge would cut is not written: half of 6e-20 would read as -20", () => {
  const cut = written({ x: 102.7, y: 101.5, w: 4.5 });
  assert.ok(cut.length > 0);
  for (const [words, x] of cut) {
    const half = (LETTER * words.length) / 2;
    assert.ok(x - half >= rect.x && x + half <= rect.x + rect.width, `${words} at ${x}`);
  }
  assert.deepEqual([...new Set(cut.map(([, x]) => Math.round(x)))].length, 4, "the four columns that have room");
});
