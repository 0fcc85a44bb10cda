import assert from "node:assert/strict";
import { test } from "node:test";
import {
  between, cellAt, clampView, fitView, LARGEST_CELL, levelFor, nearView, panBy, pixelOf, scaleOf, seenPart, TILE, tilesSeen, toPixel, toToken, viewOfCell,
  withinAncestor, zoomAbout,
} from "../../src/clearhead/viewer/web/zoom.js";

const size = { width: 800, height: 600 };
const near = (a, b, within = 1e-6) => assert.ok(Math.abs(a - b) <= within, `${a} is not ${b}`);

test("pixels and tokens are inverse", () => {
  for (const view of [{ x: 10, y: 20, w: 5 }, { x: 50000.25, y: 99999.75, w: 12.5 }, { x: 1, y: 1, w: 100000 }]) {
    const { px, py } = toPixel(view, size, 33.25, 44.5);
    const { col, row } = toToken(view, size, px, py);
    near(col, 33.25);
    near(row, 44.5);
  }
});

test("everything fits, in the middle, from 1 x 1 to 100,000 x 7", () => {
  for (const [T, S] of [[1, 1], [8, 8], [32768, 32768], [100000, 7], [3, 5000]]) {
    const view = fitView(size, T, S);
    const a = toPixel(view, size, 0, 0);
    const b = toPixel(view, size, S, T);
    assert.ok(a.px >= -1e-6 && a.py >= -1e-6 && b.px <= 800 + 1e-6 && b.py <= 600 + 1e-6);
    near(a.px + b.px, 800);
    assert.ok(scaleOf(view, size) <= LARGEST_CELL);
    assert.deepEqual(clampView(view, size, T, S), view);
  }
});

test("a view is kept on the map, and a broken one becomes everything", () => {
  const far = clampView({ x: -500, y: 1e9, w: 100 }, size, 32768, 32768);
  near(far.x, 50);
  near(far.y, 32768 - 37.5);
  near(clampView({ x: 0, y: 0, w: 1e-9 }, size, 32768, 32768).w, 800 / LARGEST_CELL);
  assert.deepEqual(clampView({ x: NaN, y: NaN, w: NaN }, size, 100, 100), fitView(size, 100, 100));
});

test("zooming keeps the token under the pointer", () => {
  let view = fitView(size, 32768, 32768);
  const before = toToken(view, size, 123, 456);
  for (let n = 0; n < 9; n += 1) view = zoomAbout(view, size, 123, 456, 1.7);
  const after = toToken(view, size, 123, 456);
  near(after.col, before.col, 1e-6);
  near(after.row, before.row, 1e-6);
});

test("panning moves the map with the hand", () => {
  const view = { x: 100, y: 100, w: 80 };
  const was = toPixel(view, size, 100, 100);
  const now = toPixel(panBy(view, size, 30, -20), size, 100, 100);
  near(now.px - was.px, 30);
  near(now.py - was.py, -20);
});

test("a position is found where its row was kept", () => {
  assert.deepEqual(cellAt({ T: 100, S: 100, rowAt: null }, 40), { i: 40, j: 40 });
  assert.deepEqual(cellAt({ T: 4, S: 100, rowAt: [3, 10, 17, 24] }, 18), { i: 2, j: 18 });
  assert.deepEqual(cellAt({ T: 4, S: 100, rowAt: [3, 10, 17, 24] }, 1), { i: 0, j: 1 });
  assert.deepEqual(cellAt({ T: 30, S: 100, rowAt: null }, 200), { i: 29, j: 99 });
});

test("levels: no pixel of a tile is smaller than one of the device", () => {
  for (const w of [10, 799, 800, 801, 3000, 32768]) {
    for (const dpr of [1, 1.5, 2, 3]) {
      const z = levelFor({ x: 0, y: 0, w }, size, dpr, 7);
      if (z < 7) assert.ok(2 ** z * (800 / w) * dpr > 0.98);
      if (z > 0) assert.ok(2 ** (z - 1) * (800 / w) * dpr < 1);
    }
  }
});

test("the tiles cover what is seen, the middle first", () => {
  const view = { x: 5000, y: 6000, w: 3000 };
  const z = levelFor(view, size, 1, 7);
  const span = TILE * 2 ** z;
  const list = tilesSeen(view, size, 32768, 32768, z);
  const part = seenPart(view, size, 32768, 32768);
  for (const [row, col] of [[part.r0, part.c0], [part.r1 - 1, part.c1 - 1], [part.r0, part.c1 - 1]]) {
    assert.ok(list.some((t) => t.ty === Math.floor(row / span) && t.tx === Math.floor(col / span)));
  }
  assert.equal(new Set(list.map((t) => `${t.ty} ${t.tx}`)).size, list.length);
  assert.ok(Math.abs((list[0].tx + 0.5) * span - 5000) <= span && Math.abs((list[0].ty + 0.5) * span - 6000) <= span);
  assert.deepEqual(tilesSeen(fitView(size, 300, 300), size, 300, 300, 1), [{ z: 1, ty: 0, tx: 0 }]);
});

test("a tile within its ancestor", () => {
  assert.deepEqual(withinAncestor(3, 5, 6, 5), { ty: 1, tx: 1, sx: 128, sy: 64, side: 64 });
  assert.deepEqual(withinAncestor(2, 1, 0, 2), { ty: 1, tx: 0, sx: 0, sy: 0, side: 256 });
});

test("the cells of a pixel end where the map ends", () => {
  assert.deepEqual(pixelOf(4, 100, 37, 101, 40), { i0: 96, i1: 101, j0: 32, j1: 40 });
  assert.deepEqual(pixelOf(0, 7, 3, 8, 8), { i0: 7, i1: 8, j0: 3, j1: 4 });
});

test("gliding arrives, and what is held stays under its pixel", () => {
  let view = fitView(size, 32768, 32768);
  const goal = clampView(viewOfCell(12345, 12340, 40), size, 32768, 32768);
  for (let n = 0; n < 60 && !nearView(view, goal); n += 1) view = between(view, goal, 0.3, size);
  assert.ok(nearView(view, goal));
  const held = { px: 100, py: 50, ...toToken(goal, size, 100, 50) };
  const on = toToken(between(goal, { ...goal, w: 10 }, 0.5, size, held), size, 100, 50);
  near(on.col, held.col);
  near(on.row, held.row);
});
