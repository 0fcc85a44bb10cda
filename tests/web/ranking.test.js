// The largest weights, ranks, shades of text, and the order of tables.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LEAST_TIMES, darkest, HIDDEN_SHADE, TEXT_SHADES, headOrder, largest, leastShaded, rankOf, shadeOf, shadesOf, sortedBy, totals } from "../../src/clearhead/viewer/web/ranking.js";

test("the largest are those of a full sort, equals by their place", () => {
  let seed = 11;
  const weights = Float32Array.from({ length: 5000 }, (_, n) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return n % 7 === 0 ? NaN : Math.round((seed / 2147483648) * 400) / 400;
  });
  const whole = [...weights.keys()].filter((n) => weights[n] > 0).sort((a, b) => weights[b] - weights[a] || a - b);
  assert.deepEqual(largest(weights, 25), whole.slice(0, 25));
  assert.deepEqual(largest(weights, 1e6), whole);
});

test("nothing that is hidden or zero is among the largest", () => {
  assert.deepEqual(largest(Float32Array.of(NaN, 0, 0.5, NaN), 10), [2]);
  assert.deepEqual(largest(new Float32Array(0), 10), []);
});

test("ranks count what is larger; equals share one; the hidden have none", () => {
  const weights = Float32Array.of(0.1, NaN, 0.6, 0.1, 0.2);
  assert.deepEqual([0, 1, 2, 3, 4].map((n) => rankOf(weights, n)), [3, null, 1, 3, 2]);
  assert.equal(rankOf(weights, 99), null);
  const { seen, sum } = totals(weights);
  assert.equal(seen, 4);
  assert.ok(Math.abs(sum - 1) < 1e-6);
});

test("shades grow with the weight, end at the largest, and tell zero from hidden", () => {
  for (const scale of ["linear", "log"]) {
    let before = 0;
    for (let n = 0; n <= 1000; n += 1) {
      const shade = shadeOf((n / 1000) * 0.02, 0.02, scale);
      assert.ok(shade >= before);
      before = shade;
    }
    assert.equal(before, TEXT_SHADES);
    assert.equal(shadeOf(0, 0.5, scale), 0);
    assert.equal(shadeOf(NaN, 0.5, scale), HIDDEN_SHADE);
    assert.equal(shadeOf(0.5, 0, scale), 0);
    const least = leastShaded(0.02, scale);
    assert.equal(shadeOf(least * 0.99, 0.02, scale), 0);
    assert.equal(shadeOf(least * 1.01, 0.02, scale), 1);
  }
  assert.equal(shadeOf(0.01, 0.02, "linear"), TEXT_SHADES / 2);
  assert.equal(shadeOf(1e-2, 1, "log"), TEXT_SHADES / 2);
  assert.deepEqual([...shadesOf(Float32Array.of(1, NaN, 0), 1, "linear")], [TEXT_SHADES, HIDDEN_SHADE, 0]);
});

test("a head that reads all alike stays pale, one that reads few does not, a text of few tokens is shaded from 0 to 1", () => {
  const equal = 1 / 90000;
  assert.equal(shadeOf(equal, darkest(equal, equal), "linear"), TEXT_SHADES / LEAST_TIMES);
  assert.equal(shadeOf(0.5, darkest(0.5, equal), "linear"), TEXT_SHADES);
  assert.equal(darkest(0.3, 1 / 4), 1);
  assert.equal(darkest(1, 1), 1);
  assert.equal(darkest(0.3, NaN), 0.3);
});

test("tables: nothing comes last either way, equals keep their order, 3.10 after 3.9", () => {
  const records = [{ h: "3.10", v: 2 }, { h: "3.9", v: null }, { h: "0.1", v: 2 }, { h: "1.0", v: NaN }, { h: "2.0", v: -1 }];
  const heads = (found) => found.map(({ h }) => h).join(" ");
  assert.equal(heads(sortedBy(records, ({ v }) => v, false)), "2.0 3.10 0.1 3.9 1.0");
  assert.equal(heads(sortedBy(records, ({ v }) => v, true)), "3.10 0.1 2.0 3.9 1.0");
  assert.equal(heads(sortedBy(records, ({ h }) => headOrder(h), false)), "0.1 1.0 2.0 3.9 3.10");
  assert.equal(heads(sortedBy(records, ({ h }) => h, true)), "3.9 3.10 2.0 1.0 0.1");
});
