// Scores the other way round, with keys in the lanes: a tile of one head's queries by LANES keys,
// (queries, LANES). A column of the map then lies in a lane: what a key receives, and its gradient.
// Each score is the same sum in the same order as in scores.h, to the bit.
#pragma once
#include "scores.h"

enum { QUERIES = 128 };  // queries in a tile

typedef struct {
  int64_t b, h, i0;
  int n;
  Query q[QUERIES];
  Reach reach;
} Tile;

// Keys j0:j0 + n of a key head, in the lanes.
typedef struct {
  int64_t b, g, j0;
  int n, n_vecs;
} Keys;

// The queries from i0 on, before i1.
static void begin_tile(const Call *c, int64_t b, int64_t h, int64_t i0, int64_t i1, Tile *t) {
  *t = (Tile){.b = b, .h = h, .i0 = i0, .n = (int)least(QUERIES, i1 - i0), .reach = no_reach(c)};
  for (int i = 0; i < t->n; i++) {
    t->q[i] = query_of(c, b, h, i0 + i);
    reach_with(&t->reach, &t->q[i]);
  }
}

static Keys keys_from(int64_t b, int64_t g, int64_t j0, int64_t j1) {
  int n = (int)least(LANES, j1 - j0);
  return (Keys){b, g, j0, n, (n + W - 1) / W};
}

// What each key of a block has in an array.
static void pack_of_keys(
    const Array *from, const Keys *x, int width, int parts, REAL *turned, Packed *to) {
  Place place[LANES];
  for (int lane = 0; lane < LANES; lane++) place[lane] = (Place){x->g, x->j0 + lane};
  pack_lanes(from, x->b, place, x->n, x->n_vecs, width, 1, parts, turned, to);
}

// A tile's queries for scores.
static void pack_tile_queries(const Call *c, const Tile *t, Packed *to) {
  Array q = packed(c, &c->q);
  pack_rows(&q, t->b, t->h, t->i0, t->n, c->depth, factor_of_queries(c), parts_of_scores(c), to);
}

// Keys of a block for scores, (depth, LANES); `turned` is room for lanes.
static void pack_key_lanes(const Call *c, const Keys *x, REAL *turned, Packed *to) {
  Array k = packed(c, &c->k);
  pack_of_keys(&k, x, c->depth, parts_of_scores(c), turned, to);
}

// The queries from:to of a tile, the first at a whole step, outside of which none sees any of these
// keys; from is to where there are none.
typedef struct {
  int from, to;
} Span;

INLINE Span span_of(const Tile *t, const Keys *x) {
  int64_t j0 = x->j0, j1 = x->j0 + x->n;
  int from = 0, to = t->n;
  while (from < to && (t->q[from].low >= j1 || t->q[from].high <= j0)) from++;
  while (to > from && (t->q[to - 1].low >= j1 || t->q[to - 1].high <= j0)) to--;
  return (Span){from == to ? to : from / STEP * STEP, to};
}

static void shape_crossed(
    const Call *c, const Tile *t, Span span, const Keys *x, REAL *s, REAL *slope) {
  int width = x->n_vecs * W;
  if (c->softcap > 0)
    cap(c, span.to - span.from, width, s + span.from * LANES,
        slope ? slope + span.from * LANES : NULL);
  for (int i = span.from; i < span.to; i++) {
    REAL *row = s + i * LANES;
    if (c->alibi) {
      vec factor = every((REAL)c->alibi[t->h]), back = every((REAL)(t->q[i].own - x->j0));
      for (int at = 0; at < width; at += W) {
        REAL key[W];
        for (int j = 0; j < W; j++) key[j] = (REAL)(at + j);
        store(row + at, fma_(factor, load(key) - back, load(row + at)));
      }
    }
    if (c->bias.data) {
      int64_t step = c->bias.strides[3];
      const char *bias = at(&c->bias, t->b, t->h, t->i0 + i) + x->j0 * step;
      for (int j = 0; j < x->n; j++) row[j] += number_at(bias + j * step, c->bias.dtype);
    }
  }
}

// Scores of a tile's queries, packed, for keys (depth, LANES): of those of the span.
static void score_crossed(
    const Call *c, const Tile *t, Span span, const Keys *x, Packed queries, Packed keys, REAL *s,
    REAL *slope) {
  int n = span.to - span.from;
  multiply(c, rows_from(queries, span.from, c->depth), keys, n, x->n_vecs, 1, s + span.from * LANES);
  if (c->softcap > 0 || c->alibi || c->bias.data) shape_crossed(c, t, span, x, s, slope);
  if (x->j0 >= t->reach.all_from && x->j0 + x->n <= t->reach.all_to &&
      !anything_hidden(c, t->b, t->q + span.from, n, x->j0, x->n))
    return;
  uint8_t shown[LANES];
  for (int i = span.from; i < span.to; i++) {
    shown_to(c, t->b, &t->q[i], x->j0, x->n, shown);
    for (int j = 0; j < x->n; j++) s[i * LANES + j] = shown[j] ? s[i * LANES + j] : -INFINITY;
  }
}

// The weight of a score whose row's lse is high + low; exactly 0 where it is hidden.
INLINE vec weight_of(vec s, vec high, vec low, vec *log_p) {
  *log_p = greatest(every(LOWEST), s - high - low);
  return if_less(s, every(FINITE_MIN), (vec){0}, exp_(*log_p));
}

INLINE REAL finite_or_0(REAL lse) { return lse == -INFINITY ? 0 : lse; }
