import assert from "node:assert/strict";
import { test } from "node:test";
import { moved, readAddress, writeAddress } from "../../src/clearhead/viewer/web/state.js";

test("an address comes back as it was", () => {
  for (const state of [
    { place: "model" },
    { place: "model", tab: "tiny-en", color: "normalized_entropy", role: "induction", down: "1" },
    { place: "head", head: "3.5", tab: "a b/ü#&=?%", x: 12000.5, y: 13000, w: 400, pool: "max", color: "log", i: 12345, j: 12340 },
    { place: "token", i: 12345, heads: ["0.0", "1.3"], way: "to", q: "the cat" },
    { place: "compare", head: "3.5", head2: "1.2", tab: "a", tab2: "b", show: "difference" },
  ]) {
    assert.deepEqual(readAddress(writeAddress(state)), { state, complaints: [] });
  }
});

test("what cannot be read is left out and said, never thrown", () => {
  for (const bad of ["#/head/x", "#/head/3.5?x=1e9", "#/head/3.5?w=-4", "#/head/3.5?w=0", "#/head/3.5?pool=sum", "#/token/-1", "#/token/1e3", "#/nowhere", "#/head/%E0%A4%A",
    "#/head/3.5?x=NaN", "#/head/3.5?i=99999999999999999999", "#/model?__proto__=1", "#/model?constructor=1", "#/head/3.5?seq=1.5", `#/model?tab=${"x".repeat(400)}`]) {
    const { state, complaints } = readAddress(bad);
    assert.equal(complaints.length, 1, bad);
    assert.ok(!complaints[0].includes("\n") && complaints[0].length < 140);
    assert.ok(["model", "head", "token"].includes(state.place));
  }
  for (const empty of ["", "#", "#/", "#/model", "#//"]) assert.deepEqual(readAddress(empty), { state: { place: "model" }, complaints: [] });
});

test("markup in an address is text", () => {
  const { state } = readAddress("#/model?role=%3Cimg%20src%3Dx%20onerror%3D1%3E");
  assert.equal(state.role, "<img src=x onerror=1>");
});

test("going to another place keeps the run and what fits there", () => {
  const head = { place: "head", head: "1.2", tab: "t", seq: 3, x: 5, w: 9, pool: "mean", color: "log", i: 4, j: 2 };
  assert.deepEqual(moved(head, { place: "token", i: 7, heads: ["1.2"] }), { place: "token", tab: "t", seq: 3, color: "log", i: 7, heads: ["1.2"] });
  assert.deepEqual(moved(head, { place: "model" }), { place: "model", tab: "t", seq: 3 });
  assert.deepEqual(moved(head, { head: "0.1" }), { ...head, head: "0.1" });
  assert.equal(writeAddress(moved(head, { i: undefined, j: undefined })).includes("i="), false);
});
