// Scores with queries in the lanes: a block's, for a tile of keys, as the rule has them. (keys,
// LANES), -inf where hidden.
#pragma once
#include "block.h"
#include "exp.h"
#include "turn.h"

#if defined(AMX)
#include "amx.h"
#else
#include "outer.h"
#endif

// Notes it where a key or a value is not finite.
static void note(Call *c, vec seen) {
  if (any_bad(seen)) __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
}

// Into how many parts each number of an array is split: one of bfloat16 is its own first.
INLINE int parts_of(const Array *x) { return SPLIT && x->dtype != BFLOAT16 ? 3 : 1; }

// Where a row lies in an array, for one batch element.
typedef struct {
  int64_t h, i;
} Place;

// Rows, n of them, times a factor, turned into lanes as they are multiplied: (width, LANES). Where numbers
// are split they are `turned` first.
static void pack_lanes(
    const Array *from, int64_t b, const Place *place, int n, int n_vecs, int width, REAL factor,
    int parts, REAL *turned, Packed *to) {
  vec seen = {0};
  REAL room[W][width + 1], nothing[width + 1], *lanes = SPLIT ? turned : to->at, all = factor;
  memset(nothing, 0, sizeof nothing);
  for (int again = 0; again < 2; again++) {
    for (int at = 0; at < n_vecs * W; at += W) {
      const REAL *rows[W];
      for (int i = 0; i < W; i++) {
        const Place *p = place + at + i;
        rows[i] = at + i < n ? row_of(from, b, p->h, p->i, width, room[i]) : nothing;
        if (SPLIT && !again) look_at(rows[i], width, &seen);
      }
      turn_rows(rows, width, all, lanes + at);
    }
    if (again || !(to->up = lift_of(largest_bits(seen), factor))) break;
    all = (REAL)ldexp(factor, to->up);
  }
  ready(turned, width, n_vecs, parts, to->at);
}

// What each query of a block has in an array.
static void pack_of_queries(
    const Array *from, const Block *x, int width, REAL factor, int parts, REAL *turned, Packed *to) {
  Place place[LANES];
  for (int lane = 0; lane < LANES; lane++) place[lane] = (Place){x->q[lane].h, x->q[lane].i};
  pack_lanes(from, x->b, place, x->n, x->n_vecs, width, factor, parts, turned, to);
}

// Into how many parts queries and keys are split, and what queries are multiplied by: bfloat16 that is
// multiplied as it is is not scaled yet.
INLINE int parts_of_scores(const Call *c) { return c->pairs ? 1 : 3; }
INLINE REAL factor_of_queries(const Call *c) { return c->pairs ? 1 : (REAL)c->scale; }

// Queries of a block for scores, (depth, LANES); `turned` is room for lanes.
static void pack_queries(const Call *c, const Block *x, REAL *turned, Packed *to) {
  Array q = packed(c, &c->q);
  pack_of_queries(&q, x, c->depth, factor_of_queries(c), parts_of_scores(c), turned, to);
}

// Keys j0:j0 + n for scores.
static void pack_key_rows(Call *c, int64_t b, int64_t g, int64_t j0, int n, Packed *to) {
  Array k = packed(c, &c->k);
  vec seen = pack_rows(&k, b, g, j0, n, c->depth, 1, parts_of_scores(c), to);
  if (c->pairs && !SPLIT)  // of two as one number a sum sees the upper: here are the lower halves
    for (int d = 0; d < n * c->depth; d += W) {
      int few = n * (int)c->depth - d < W ? n * (int)c->depth - d : W;
      INT low[W] = {0};
      memcpy(low, to->at + d, few * sizeof(REAL));
      seen = fma_((vec)(iload(low) << 16), every(0), seen);
    }
  note(c, seen);
}

// Rows (n in whole groups, depth) by lanes (depth, LANES), scaled: `finish_scores` is when they are there.
static void start_scores(
    const Call *c, Products *p, Packed rows, Packed lanes, int n, int n_vecs, int crossed, REAL *s) {
#if defined(PAIRS)
  if (c->pairs) {
    products_of_pairs(rows.at, lanes.at, s, n, c->depth, n_vecs, (REAL)c->scale);
    return;
  }
#endif
  start_products(p, rows, lanes, s, n, c->depth, n_vecs, parts_of_scores(c), crossed);
}

static void finish_scores(const Call *c, Products *p, int n, REAL *s) {
  finish_products(p);
  if (SPLIT && c->pairs && c->scale != 1)
    for (int i = 0; i < n * LANES; i += W) store(s + i, load(s + i) * every((REAL)c->scale));
}

static void multiply(
    const Call *c, Packed rows, Packed lanes, int n, int n_vecs, int crossed, REAL *s) {
  Products p;
  start_scores(c, &p, rows, lanes, n, n_vecs, crossed, s);
  finish_scores(c, &p, n, s);
}

// -inf where position hides a key; adds to `seen` how many are left.
static void hide_by_position(const Block *x, int64_t j0, int n, REAL *s, int64_t *seen) {
  INT low[LANES], high[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    low[lane] = within(x->q[lane].low - j0, 0, n);
    high[lane] = within(x->q[lane].high - j0, 0, n);
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
    seen[lane] += shown_to(c, x->b, &x->q[lane], j0, n, shown);
    for (int j = 0; j < n; j++) {
      REAL *here = s + j * LANES + lane;
      *here = shown[j] ? *here : -INFINITY;
    }
  }
}

// c tanh(x / c) in place; its slope, 1 - tanh^2, goes to `slope` if that is asked for.
static void cap(const Call *c, int n, int width, REAL *s, REAL *slope) {
  vec cap = every((REAL)c->softcap);
  for (int j = 0; j < n; j++)
    for (int at = 0; at < width; at += W) {
      REAL *here = s + j * LANES + at;
      vec t = tanh_(load(here) / cap);
      store(here, t * cap);
      if (slope) store(slope + j * LANES + at, every(1) - t * t);
    }
}

// Softcap, then ALiBi, then bias, in place.
static void shape(const Call *c, const Block *x, int64_t j0, int n, REAL *s, REAL *slope) {
  int width = x->n_vecs * W;
  if (c->softcap > 0) cap(c, n, width, s, slope);
  if (c->alibi) {
    REAL slope[LANES] = {0}, back[LANES] = {0};
    for (int lane = 0; lane < x->n; lane++) {
      slope[lane] = (REAL)c->alibi[x->q[lane].h];
      back[lane] = (REAL)(x->q[lane].own - j0);
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
      const char *row = at(&c->bias, x->b, x->q[lane].h, x->q[lane].i) + j0 * step;
      for (int j = 0; j < n; j++) s[j * LANES + lane] += number_at(row + j * step, c->bias.dtype);
    }
  }
}

// Products of queries and keys j0:j0 + n, made into scores by the rule, in place. Adds to `seen` how many
// keys each lane sees, and says whether any is hidden.
static int apply_rule(
    const Call *c, const Block *x, int64_t j0, int n, REAL *s, REAL *slope, int64_t *seen) {
  if (c->softcap > 0 || c->alibi || c->bias.data) shape(c, x, j0, n, s, slope);
  if (anything_hidden(c, x->b, x->q, x->n, j0, n)) {
    hide_by_all(c, x, j0, n, s, seen);
    return 1;
  }
  if (j0 < x->reach.all_from || j0 + n > x->reach.all_to) {
    hide_by_position(x, j0, n, s, seen);
    return 1;
  }
  for (int lane = 0; lane < LANES; lane++) seen[lane] += n;
  return 0;
}

// Scores of the queries q (depth, LANES) for the packed keys j0:j0 + n, in s, likewise.
static int score(
    const Call *c, const Block *x, Packed q, Packed keys, int64_t j0, int n, REAL *s, REAL *slope,
    int64_t *seen) {
  multiply(c, keys, q, n, x->n_vecs, 0, s);
  return apply_rule(c, x, j0, n, s, slope, seen);
}
