// What was typed into the search field, which match comes next; how figures are written and placed; and a
// drawing of hostile words.
import assert from "node:assert/strict";
import { test } from "node:test";
import { figure, placeIn, rangeOf, times } from "../../src/clearhead/viewer/web/heads.js";
import { asked, matchFrom } from "../../src/clearhead/viewer/web/search.js";
import { Drawing } from "../../src/clearhead/viewer/web/drawing.js";

test("numbers are positions, all else is searched for", () => {
  assert.deepEqual(asked("12345"), { position: 12345 });
  assert.deepEqual(asked(" :12,345 "), { position: 12345 });
  assert.deepEqual(asked(" the"), { q: " the" });
  assert.deepEqual(asked("=12"), { q: "12" });
  assert.deepEqual(asked("="), { q: "=" });
  assert.deepEqual(asked("1.5"), { q: "1.5" });
  assert.deepEqual(asked("-3"), { q: "-3" });
  assert.deepEqual(asked(""), {});
});

test("the next match goes round, either way", () => {
  const found = [3, 10, 500];
  assert.equal(matchFrom(found, -1, 1), 3);
  assert.equal(matchFrom(found, 3, 1), 10);
  assert.equal(matchFrom(found, 500, 1), 3);
  assert.equal(matchFrom(found, 10, -1), 3);
  assert.equal(matchFrom(found, 3, -1), 500);
  assert.equal(matchFrom([], 3, 1), null);
});

test("figures in few letters", () => {
  const written = [[0, "0"], [0.5, ".50"], [0.0071, ".007"], [2.4e-5, "2e-5"], [1, "1.00"], [17.25, "17.3"], [16329.4, "16,329"], [-0.25, "-.25"], [-1234, "−1,234"], [null, "–"], [NaN, "–"]];
  for (const [x, words] of written) assert.equal(figure(x), words);
  assert.deepEqual([times(0.5, 0.1), times(0.05, 0.1), times(1e-9, 0.1), times(0.5, NaN), times(NaN, 0.1)], ["5.0 ×", ".50 ×", "< .001 ×", "", ""]);
});

test("a metric without an end of its own goes as far as the heads do; what is missing has no place", () => {
  const heads = [{ d: 3 }, { d: 41.5 }, { d: null }];
  assert.deepEqual(rangeOf({ key: "d", low: 0, high: null }, heads), [0, 41.5]);
  assert.deepEqual(rangeOf({ key: "d", low: 0, high: 1 }, heads), [0, 1]);
  assert.deepEqual(rangeOf({ key: "none", low: null, high: null }, heads), [0, 1]);
  assert.deepEqual([placeIn([0, 10], 5), placeIn([0, 10], 99), placeIn([0, 10], null), placeIn([0, 10], NaN)], [0.5, 1, null, null]);
});

test("words in a drawing are words", () => {
  const drawing = new Drawing(100, 50, false);
  drawing.text(1, 2, "</text><script>alert('1')</script>&amp;\"", "#000");
  const svg = drawing.svg();
  assert.ok(!svg.includes("<script"));
  assert.equal(svg.match(/<text/g).length, 1);
  assert.equal(svg.match(/<\/text>/g).length, 1);
});
