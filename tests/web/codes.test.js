import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeCode, decodeTable, encodeWeight, HIDDEN, NO_NUMBER, ONE, ZERO } from "../../src/clearhead/viewer/web/codes.js";

test("the ends of the scale", () => {
  assert.equal(encodeWeight(1), ONE);
  assert.equal(encodeWeight(2 ** -32), 2);
  assert.equal(encodeWeight(2 ** -32.001), ZERO);
  assert.equal(encodeWeight(0), ZERO);
  assert.equal(encodeWeight(1.0000001), ONE);
  assert.equal(encodeWeight(NaN), NO_NUMBER);
  assert.equal(decodeCode(ONE), 1);
  assert.equal(decodeCode(2), 2 ** -32);
  assert.equal(decodeCode(ZERO), 0);
  assert.equal(decodeCode(HIDDEN), 0);
  assert.ok(Number.isNaN(decodeCode(NO_NUMBER)));
});

test("every code comes back, larger codes are larger weights", () => {
  for (let code = 2, before = 0; code <= ONE; code += 1) {
    const p = decodeCode(code);
    assert.equal(encodeWeight(p), code);
    assert.ok(p > before);
    before = p;
  }
});

test("a weight loses at most 0.017 percent", () => {
  for (let n = 1; n < 5000; n += 1) {
    const p = (n / 5000) ** 5 + 1e-9;
    assert.ok(Math.abs(decodeCode(encodeWeight(p)) / p - 1) < 1.7e-4);
  }
});

test("the table is decodeCode", () => {
  const table = decodeTable();
  assert.equal(table.length, 65536);
  for (const code of [0, 1, 2, 777, 30000, ONE]) assert.equal(table[code], decodeCode(code));
});
