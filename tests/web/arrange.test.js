// Lines of running text: packing, finding, what is seen; and what a token shows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LONGEST_TOKEN, areApart, lineAt, linesOf, linesSeen, overview, scrollFor, tokenParts } from "../../src/clearhead/viewer/web/arrange.js";

const never = () => false;
const chance = (seed) => () => ((seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648);

test("every token stands on exactly one line, in order, within the room", () => {
  const random = chance(7);
  for (const room of [30, 100, 333]) {
    const widths = Array.from({ length: 2000 }, () => 1 + Math.floor(random() * 60));
    const starts = linesOf(2000, (n) => widths[n], never, room);
    assert.equal(starts[0], 0);
    assert.equal(starts.at(-1), 2000);
    for (let line = 0; line + 1 < starts.length; line += 1) {
      const [from, to] = [starts[line], starts[line + 1]];
      assert.ok(to > from);
      const used = widths.slice(from, to).reduce((sum, w) => sum + w, 0);
      assert.ok(used <= room || to === from + 1, "only a single token may be too wide");
      if (to < 2000) assert.ok(used + widths[to] > room, "a line is filled as far as it goes");
      for (let n = from; n < to; n += 1) assert.equal(lineAt(starts, n), line);
    }
  }
});

test("a line ends where the text says so", () => {
  const starts = linesOf(5, () => 1, (n) => n === 1 || n === 2, 100);
  assert.deepEqual([...starts], [0, 2, 3, 5]);
});

test("no tokens, one token", () => {
  assert.deepEqual([...linesOf(0, () => 1, never, 10)], [0]);
  assert.deepEqual([...linesOf(1, () => 99, never, 10)], [0, 1]);
  assert.equal(lineAt(Uint32Array.of(0), 0), 0);
});

test("the lines seen cover the window and no more than was asked for", () => {
  assert.deepEqual(linesSeen(0, 100, 28, 1000), [0, 4]);
  assert.deepEqual(linesSeen(28, 56, 28, 1000), [1, 3]);
  assert.deepEqual(linesSeen(27000, 2000, 28, 1000), [964, 1000]);
  assert.deepEqual(linesSeen(0, 100, 28, 2, 8), [0, 2]);
  assert.deepEqual(linesSeen(-50, 100, 28, 0), [0, 0]);
});

test("scrolling to a line leaves the view alone where the line is well inside", () => {
  assert.equal(scrollFor(10, 0, 600, 28, 1000), 0);
  const top = scrollFor(500, 0, 600, 28, 1000);
  assert.ok(500 * 28 > top && 501 * 28 < top + 600);
  assert.equal(scrollFor(999, 0, 600, 28, 1000), 28000 - 600);
  assert.equal(scrollFor(0, 900, 600, 28, 1000), 0);
  assert.equal(scrollFor(31, 900, 600, 28, 1000), 31 * 28 - 200, "just above the window");
  assert.equal(scrollFor(1, 0, 600, 28, 3), 0);
});

test("the overview keeps the largest weight of every part, and tells hidden from zero", () => {
  const random = chance(3);
  const values = Float32Array.from({ length: 1000 }, random);
  const starts = linesOf(1000, () => 10, never, 70);
  const found = overview(values, starts, 40);
  assert.equal(Math.max(...found), Math.max(...values));
  const late = overview(Float32Array.from(values, (v, n) => (n < 500 ? v : NaN)), starts, 40);
  assert.ok(late[0] > 0 && Number.isNaN(late[39]));
  assert.ok(!overview(new Float32Array(1000), starts, 40).some(Number.isNaN));
  assert.equal(overview(Float32Array.of(0.5), Uint32Array.of(0, 1), 7).filter((v) => v === 0.5).length, 7);
});

test("what a token shows", () => {
  const shown = (raw) => tokenParts(raw).map(({ kind, text }) => `${kind}:${text}`).join("|");
  assert.equal(shown(" the"), "space: |text:the");
  assert.equal(shown("a b"), "text:a b");
  assert.equal(shown("  "), "space:  ");
  assert.equal(shown("\n\n"), "line:↵↵");
  assert.equal(shown("\u200bx\u0000"), "code:\\u200b|text:x|code:\\x00");
  assert.equal(shown("\ud800"), "code:\\ud800");
  assert.equal(shown(""), "empty:∅");
  assert.equal(shown("</script><b>"), "text:</script><b>");
  assert.equal(shown("😀"), "text:😀");
  const long = tokenParts("😀".repeat(5000));
  assert.equal([...long[0].text].length, LONGEST_TOKEN + 1);
  assert.ok(long[0].text.endsWith("…") && !/[\ud800-\udbff](?![\udc00-\udfff])/.test(long[0].text));
});

test("tokens without a space among them stand apart, others say their spaces themselves", () => {
  assert.ok(areApart(["the", "cat", "##s", null, undefined, "."]));
  assert.ok(!areApart(["the", " cat", "s"]));
  assert.ok(!areApart(["K", "ub", " ", "K"]));
  assert.ok(!areApart(["a", "\n"]));
  assert.ok(!areApart(["alone"]));
  assert.ok(!areApart([]));
});
