// Scores of a block's queries for a tile of keys, as the rule has them: (keys, LANES), -inf where
// hidden.
#pragma once
#include "block.h"
#include "exp.h"
#include "outer.h"
#include "transpose.h"

// Scaled queries of a block, (D, LANES).
static void pack_queries(const Call *c, const Block *x, REAL *to) {
  int D = c->D;
  REAL room[W][D], nothing[D], scale = (REAL)c->scale;
  memset(nothing, 0, sizeof nothing);
  for (int at = 0; at < x->n_vecs * W; at += W) {
    const REAL *rows[W];
    for (int i = 0; i < W; i++) {
      int lane = at + i;
      rows[i] = lane < x->n ? row_of(&c->q, x->b, x->h[lane], x->i[lane], D, room[i]) : nothing;
    }
    int d = 0;
    for (; d + W <= D; d += W) transpose(rows, d, to + d * LANES + at, LANES);
    for (; d < D; d++)
      for (int i = 0; i < W; i++) to[d * LANES + at + i] = rows[i][d];
    for (d = 0; d < D; d++) {
      REAL *here = to + d * LANES + at;
      store(here, load(here) * every(scale));
    }
  }
}

INLINE int64_t within(int64_t x, int64_t low, int64_t high) { return most(low, least(x, high)); }

// -inf where position hides a key; adds to `seen` how many are left.
static void hide_by_position(const Block *x, int64_t j0, int n, REAL *s, int64_t *seen) {
  INT low[LANES], high[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    low[lane] = within(x->low[lane] - j0, 0, n);
    high[lane] = within(x->high[lane] - j0, 0, n);
    seen[lane] += high[lane] - low[lane];
  }
  for (int at = 0; at < x->n_vecs * W; at += W) {
    ivec from = iload(low + at), to = iload(high + at);
    for (int j = 0; j < n; j++) {
      REAL *here = s + j * LANES + at;
      vec shown = if_iless(ievery(j), to, load(here), every(-INFINITY));
      store(here, if_iless(ievery(j), from, every(-INFINITY), shown));
    }
  }
}

// The same where a mask, a bias, documents or padding hide keys too.
static void hide_by_all(const Call *c, const Block *x, int64_t j0, int n, REAL *s, int64_t *seen) {
  uint8_t shown[n];
  for (int lane = 0; lane < x->n; lane++) {
    int low = within(x->low[lane] - j0, 0, n), high = within(x->high[lane] - j0, 0, n), count = 0;
    for (int j = 0; j < n; j++) shown[j] = j >= low && j < high;
    if (c->key_mask)
      for (int j = low; j < high; j++) shown[j] &= c->key_mask[x->b * c->S + j0 + j];
    if (c->document)
      for (int j = low; j < high; j++)
        shown[j] &= c->number[x->b * c->S + j0 + j] == x->document[lane];
    if (c->mask.data) {
      int64_t step = c->mask.strides[3];
      const char *row = at(&c->mask, x->b, x->h[lane], x->i[lane]) + j0 * step;
      for (int j = low; j < high; j++) shown[j] &= row[j * step] != 0;
    }
    if (c->bias.data) {
      int64_t step = c->bias.strides[3];
      const char *row = at(&c->bias, x->b, x->h[lane], x->i[lane]) + j0 * step;
      for (int j = low; j < high; j++) shown[j] &= !bias_hides(row + j * step, c->bias.dtype);
    }
    for (int j = 0; j < n; j++) {
      count += shown[j];
      REAL *here = s + j * LANES + lane;
      *here = shown[j] ? *here : -INFINITY;
    }
    seen[lane] += count;
  }
}

// Softcap, then ALiBi, then bias, in place.
static void shape(const Call *c, const Block *x, int64_t j0, int n, REAL *s) {
  int width = x->n_vecs * W;
  if (c->softcap > 0) {
    vec cap = every((REAL)c->softcap);
    for (int j = 0; j < n; j++)
      for (int at = 0; at < width; at += W) {
        REAL *here = s + j * LANES + at;
        store(here, tanh_(load(here) / cap) * cap);
      }
  }
  if (c->alibi) {
    REAL slope[LANES] = {0}, back[LANES] = {0};
    for (int lane = 0; lane < x->n; lane++) {
      slope[lane] = (REAL)c->alibi[x->h[lane]];
      back[lane] = (REAL)(x->own[lane] - j0);
    }
    for (int j = 0; j < n; j++)
      for (int at = 0; at < width; at += W) {
        REAL *here = s + j * LANES + at;
        store(here, fma_(load(slope + at), every((REAL)j) - load(back + at), load(here)));
      }
  }
  if (c->bias.data) {
    int64_t step = c->bias.strides[3];
    for (int lane = 0; lane < x->n; lane++) {
      const char *row = at(&c->bias, x->b, x->h[lane], x->i[lane]) + j0 * step;
      for (int j = 0; j < n; j++) s[j * LANES + lane] += number_at(row + j * step, c->bias.dtype);
    }
  }
}

// Scores of the queries q (D, LANES) for the packed keys j0:j0 + n, in s. Adds to `seen` how many
// keys each lane sees, and says whether any is hidden.
static int score(
    const Call *c, const Block *x, const REAL *q, const REAL *keys, int64_t j0, int n, REAL *s,
    int64_t *seen) {
  products(keys, q, s, n, c->D, x->n_vecs);
  if (c->softcap > 0 || c->alibi || c->bias.data) shape(c, x, j0, n, s);
  if (anything_hidden(c, x, j0, j0 + n)) {
    hide_by_all(c, x, j0, n, s, seen);
    return 1;
  }
  if (j0 < x->all_from || j0 + n > x->all_to) {
    hide_by_position(x, j0, n, s, seen);
    return 1;
  }
  for (int lane = 0; lane < LANES; lane++) seen[lane] += n;
  return 0;
}
