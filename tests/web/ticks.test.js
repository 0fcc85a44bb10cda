import assert from "node:assert/strict";
import { test } from "node:test";
import { grouped, longWeight, shortWeight, shownToken, ticks, tickStep } from "../../src/clearhead/viewer/web/ticks.js";

test("labels never stand closer than asked, at any zoom", () => {
  for (let s = 1e-4; s < 200; s *= 1.31) {
    const step = tickStep(s, 15);
    assert.ok(step >= 1 && step * s >= 15 - 1e-6 || step === 1);
    assert.ok([1, 2, 5].includes(Number(String(step)[0])));
    if (step > 1) assert.ok(step * s < 15 * 2.6);
  }
});

test("ticks are true positions within the map", () => {
  assert.deepEqual(ticks(95.5, 131, 1, 10, 120), [100, 110]);
  assert.deepEqual(ticks(-3, 4, 20, 15, 3), [0, 1, 2]);
  assert.ok(ticks(0, 1e6, 1, 1, 1e6).length <= 400);
});

test("tokens as people see them", () => {
  assert.equal(shownToken(" the"), "·the");
  assert.equal(shownToken("\n"), "\\n");
  assert.equal(shownToken(""), "∅");
  assert.equal(shownToken(null), "…");
  assert.equal(shownToken(undefined), "");
  assert.equal(shownToken("a\u200bb"), "a\\u200bb");
  assert.equal(shownToken("\ud800x"), "\\ud800x");
  assert.equal(shownToken("\u00a0"), "\\xa0");
  assert.equal(shownToken("<b>&amp;"), "<b>&amp;");
  assert.equal(shownToken("🐈🐈🐈", 2), "🐈…");
  assert.equal(shownToken("x".repeat(1e6), 5), "xxxx…");
});

test("weights in few characters", () => {
  assert.equal(shortWeight(0.4231), ".42");
  assert.equal(shortWeight(1), "1");
  assert.equal(shortWeight(0), "0");
  assert.equal(shortWeight(3.2e-7), "3e-7");
  for (let n = 0; n < 400; n += 1) assert.ok(shortWeight(10 ** (-n / 40)).length <= 5);
  assert.equal(longWeight(0.25), "0.25");
  assert.equal(longWeight(NaN), "no number");
  assert.equal(longWeight(0.123456789), "0.123457");
  assert.equal(grouped(1234567), "1,234,567");
  assert.equal(grouped(999), "999");
});
