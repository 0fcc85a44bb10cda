// What every source of numbers offers the page. served.js asks a server, packed.js computes from
// bytes inside one file; nothing else in web/ knows which one it is.
//
//   kind                                   "served" or "packed"
//   about(opts)                            { tabs: [...], version, metrics: [...], roles, caveat }
//   grid(tab, opts)                        { heads: [...] }
//   head(tab, head, where, opts)           { T, S, zmax, base, cross, hasMap, rule, rowAt, ... }
//   tokens(tab, where, from, to, opts)     { from, to, total, texts }  at most 4096 a call
//   search(tab, q, where, opts)            { positions, total }
//   tile(tab, head, reduce, z, ty, tx, where, opts)       Uint16Array(65536), row by row
//   cells(tab, head, i0, i1, j0, j1, where, opts)         { weights, scores } Float32Array, at most 4096 cells
//   rows(tab, head, where, opts)           { entropy, normalized, maxProb, visible } Float32Array(T)
//   received(tab, head, where, opts)       Float32Array(S)
//   row(tab, head, i, where, opts)         Float32Array(S); NaN = hidden
//   column(tab, head, j, where, opts)      Float32Array(T); NaN = may not see it
//   link(tab, i, j, where, opts)           [{ head, weight, score, rank, uniform }] largest first
//   progress(tab, head, reduce, where, opts)              { done, what }
//
// where = { seq, batch }; opts = { signal }. A failure is an Error whose message is one line for people.

const SOURCE_METHODS = [
  "about", "grid", "head", "tokens", "search", "tile", "cells", "rows", "received", "row", "column",
  "link", "progress",
];

export function checkedSource(source) {
  const missing = SOURCE_METHODS.filter((name) => typeof source[name] !== "function");
  if (missing.length) throw new Error(`the source of numbers lacks ${missing.join(", ")}`);
  return source;
}

export function isAbort(error) {
  return error?.name === "AbortError";
}
