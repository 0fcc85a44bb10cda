import assert from "node:assert/strict";
import { test } from "node:test";
import { axisLabels, figureLayout, mapRect, trackRects } from "../../src/clearhead/viewer/web/figure.js";
import { standing } from "../../src/clearhead/viewer/web/crosshair.js";
import { binned, receivedHeight } from "../../src/clearhead/viewer/web/track.js";
import { fitView } from "../../src/clearhead/viewer/web/zoom.js";

test("a curve in pixels: smallest, mean and largest of what each covers", () => {
  const { low, mean, high } = binned(Float32Array.of(1, 2, 3, 4, NaN, 6), 0, 6, 3);
  assert.deepEqual([...low], [1, 3, 6]);
  assert.deepEqual([...mean], [1.5, 3.5, 6]);
  assert.deepEqual([...high], [2, 4, 6]);
  assert.deepEqual([...binned(Float32Array.of(5, 7), 0, 2, 4).mean], [5, 5, 7, 7]);
  assert.ok(Number.isNaN(binned(Float32Array.of(1), 3, 5, 2).mean[0]));
});

test("received mass: its most fills the track", () => {
  const height = receivedHeight(Float32Array.of(0, 3, 900));
  assert.equal(height.of(0), 0);
  assert.equal(height.of(900), 1);
  assert.ok(height.of(3) > 0.1);
});

test("rank among the visible keys of a row", () => {
  assert.deepEqual(standing(Float32Array.of(0.5, 0.25, 0.25, NaN), 1), { rank: 2, visible: 3, uniform: 1 / 3 });
  assert.equal(standing(Float32Array.of(1, NaN), 1).rank, null);
});

test("at any size the parts stay inside, and labels do not meet", () => {
  for (const [width, height] of [[330, 300], [800, 600], [1900, 900]]) {
    for (const [T, S] of [[1, 1], [8, 8], [500, 500], [32768, 32768], [40, 4000]]) {
      const layout = figureLayout(width, height);
      const view = fitView(layout.plot, T, S);
      const rect = mapRect(view, layout.plot, T, S);
      const { row, column } = trackRects(layout, rect);
      assert.ok(row.x + row.width <= width && column.y + column.height <= height);
      const { rows, columns, upright } = axisLabels(view, layout, rect, { T, S, query: (i) => `q${i}`, key: (j) => `k${j}` });
      assert.ok(rows.length >= 1 && columns.length >= 1);
      for (let n = 1; n < rows.length; n += 1) assert.ok(rows[n].y - rows[n - 1].y >= 13);
      for (let n = 1; n < columns.length; n += 1) assert.ok(columns[n].x - columns[n - 1].x >= (upright ? 60 : 12));
    }
  }
});

test("a number over the map stays clear of the name of the curve beside it", () => {
  const layout = figureLayout(396, 420);
  const view = { x: 2152, y: 2152, w: 60, h: 60 };
  const rect = mapRect(view, layout.plot, 32768, 32768);
  const { columns } = axisLabels(view, layout, rect, { T: 32768, S: 32768, query: () => "q", key: () => "k" });
  assert.ok(columns.length > 1);
  const { row } = trackRects(layout, rect);
  for (const { position, x } of columns) assert.ok(x + position.length * 3.3 < row.x, `${position} at ${x}, the curve at ${row.x}`);
});
