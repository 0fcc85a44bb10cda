import assert from "node:assert/strict";
import { test } from "node:test";
import { encodeWeight, HIDDEN, NO_NUMBER } from "../../src/clearhead/viewer/web/codes.js";
import {
  colorTable, differencePixels, diverging, ink, inkOn, legendMarks, LOG_FLOOR, pixel, placeOf, readableOn,
} from "../../src/clearhead/viewer/web/colors.js";

// CIE L* of an sRGB color.
function lightness(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return y <= 216 / 24389 ? (y * 24389) / 27 : 116 * Math.cbrt(y) - 16;
}
// What someone without red (protan) or green (deutan) cones sees: Viénot, Brettel & Mollon 1999, in linear light.
function without(rgb, kind) {
  const lin = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const M = kind === "protan" ? [[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.004, -0.004, 1]] : [[0.2928, 0.7072, 0], [0.2928, 0.7072, 0], [-0.0223, 0.0223, 1]];
  return M.map((row) => Math.min(1, Math.max(0, row.reduce((sum, m, n) => sum + m * lin[n], 0)))).map((c) => 255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
}

for (const dark of [false, true]) {
  const name = dark ? "dark" : "light";
  test(`${name}: lightness runs one way, evenly enough to read`, () => {
    const steps = [];
    for (let n = 0; n <= 32; n += 1) steps.push(lightness(ink(n / 32, dark)));
    const change = steps.slice(1).map((v, n) => (v - steps[n]) * (dark ? 1 : -1));
    assert.ok(Math.min(...change) > 1, `smallest step ${Math.min(...change)}`);
    assert.ok(Math.max(...change) < 5, `largest step ${Math.max(...change)}`);
    assert.ok(Math.abs(steps[32] - steps[0]) > 65);
  });
  for (const kind of ["protan", "deutan"]) {
    test(`${name}: the order is seen without ${kind === "protan" ? "red" : "green"} cones, and the two signs of a difference differ`, () => {
      for (let n = 1; n <= 16; n += 1) {
        const change = lightness(without(ink(n / 16, dark), kind)) - lightness(without(ink((n - 1) / 16, dark), kind));
        assert.ok(change * (dark ? 1 : -1) > 1);
      }
      for (const t of [0.3, 0.6, 1]) {
        const [a, b] = [without(diverging(t, dark), kind), without(diverging(-t, dark), kind)];
        assert.ok(Math.hypot(...a.map((v, k) => v - b[k])) > 60, `${t}`);
      }
    });
  }
  test(`${name}: hidden, no number and zero are told apart`, () => {
    const table = colorTable("log", dark);
    assert.equal(table[HIDDEN], 0);
    assert.equal(table[1], pixel(ink(0, dark)));
    assert.equal(table[65534], pixel(ink(1, dark)));
    assert.ok(!Array.from({ length: 65534 }, (_, n) => table[n + 1]).includes(table[NO_NUMBER]));
  });
}

test("scales", () => {
  for (const scale of ["linear", "log"]) {
    for (const t of [0.1, 0.5, 0.99]) assert.ok(Math.abs(placeOf(scale === "log" ? LOG_FLOOR ** (1 - t) : t, scale) - t) < 1e-9);
    assert.equal(placeOf(1, scale), 1);
    assert.equal(placeOf(0, scale), 0);
  }
  assert.equal(placeOf(LOG_FLOOR / 2, "log"), 0);
  assert.equal(legendMarks("log").at(-1)[1], "1");
});

test("a difference: sign, equality, hidden, no number", () => {
  const at = (a, b, scale) => differencePixels(Uint16Array.of(a), Uint16Array.of(b), scale, false)[0];
  const [high, low] = [encodeWeight(0.9), encodeWeight(0.1)];
  assert.equal(at(high, high, "linear"), pixel(diverging(0, false)));
  assert.equal(at(encodeWeight(1), 1, "linear"), pixel(diverging(1, false)));
  assert.equal(at(1, encodeWeight(1), "linear"), pixel(diverging(-1, false)));
  assert.equal(at(encodeWeight(1), encodeWeight(2 ** -20), "log"), pixel(diverging(1, false)));
  assert.equal(at(1, HIDDEN, "log"), pixel(diverging(0, false)));
  assert.equal(at(HIDDEN, HIDDEN, "log"), 0);
  assert.notEqual(at(high, low, "log"), at(low, high, "log"));
  assert.equal(at(NO_NUMBER, low, "log"), colorTable("log", false)[NO_NUMBER]);
});

test("text on a color can be read", () => {
  for (let n = 0; n <= 50; n += 1) {
    for (const dark of [false, true]) {
      const rgb = ink(n / 50, dark);
      const ratio = (lightY(readableOn(rgb) === "#fff" ? [255, 255, 255] : [0, 0, 0], rgb));
      assert.ok(ratio >= 4.5);
    }
  }
  assert.equal(inkOn(1, { scale: "linear", dark: false }), "#fff");
});
function lightY(a, b) {
  const y = (rgb) => { const [r, g, bl] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * bl; };
  return (Math.max(y(a), y(b)) + 0.05) / (Math.min(y(a), y(b)) + 0.05);
}
