// Backward: with the lse of a row known, every weight is known at once, and so is
//
//     dL/ds = p (g . v - fixed - d_entropy log p)
//
// (gradients.py has the letters). Two passes: with queries in the lanes for q, with keys in them for
// k and v. Each gradient is then a sum in one place and one order, whoever computes it.
#pragma once
#include "received.h"

// What comes back into a row of the map, or into each lane's.
typedef struct {
  REAL high[LANES], low[LANES], fixed[LANES], entropy[LANES];
} Back;

INLINE void read_back(const Call *c, int64_t row, int at, Back *back) {
  back->high[at] = finite_or_0(((const REAL *)c->lse)[row]);
  back->low[at] = ((const REAL *)c->lse_low)[row];
  back->fixed[at] = ((const REAL *)c->fixed)[row];
  back->entropy[at] = c->d_entropy ? ((const REAL *)c->d_entropy)[row] : 0;
}

// dL/d(q . k) from a score, g . v and the slope of the softcap; the weight goes to *p. A hidden key has
// none, whatever comes back.
INLINE vec slope_of(
    vec s, vec gv, vec slope, vec high, vec low, vec fixed, vec entropy, vec *p) {
  vec log_p;
  *p = weight_of(s, high, low, &log_p);
  return if_less(s, every(FINITE_MIN), (vec){0}, *p * (gv - fma_(entropy, log_p, fixed)) * slope);
}

// Queries in the lanes ------------------------------------------------------------------------------

typedef struct {
  Block x;
  Back back;
  int64_t number[LANES];  // of (B, H, T)
  Packed q, g;            // (D, LANES) scaled, (Dv, LANES)
  REAL *dq;               // (D in whole groups, LANES)
} QueryRows;

typedef struct {
  Packed keys, columns, values;   // a tile's keys as rows and as columns, its values as rows
  REAL *s, *d, *slope;            // (keys, LANES)
  REAL *gradients, *turned;       // d as it is multiplied; lanes being turned
  QueryRows *rows;
} QueryRoom;

// Adds g . out to `fixed`, for this pass and for the one that follows: summed like g . v is, so that
// nothing is left of their difference where one key has all the weight.
static void complete(const Call *c, QueryRoom *room, QueryRows *rows) {
  const Block *x = &rows->x;
#if defined(AMX)  // what each query made, by what comes back into all: of these the diagonal
  for (int lane = 0; lane < x->n; lane += GROUP) {
    REAL made[GROUP][c->Dv], sums[GROUP * LANES];
    int few = (int)least(GROUP, x->n - lane);
    for (int i = 0; i < few; i++) {
      const Query *q = &x->q[lane + i];
      const REAL *row = row_of(&c->made, x->b, q->h, q->i, c->Dv, made[i]);
      if (row != made[i]) memcpy(made[i], row, sizeof made[i]);
    }
    Array rows_made = {(const char *)made, {0, 0, sizeof made[0], sizeof(REAL)}, FLOAT32};
    pack_rows(&rows_made, 0, 0, 0, few, c->Dv, 1, 3, &room->values);
    products(room->values, rows->g, sums, few, c->Dv, x->n_vecs, 3, 0);
    for (int i = 0; i < few; i++) rows->back.fixed[lane + i] += sums[i * LANES + lane + i];
  }
#else
  Packed made = {room->turned, 0};
  pack_of_queries(&c->made, x, c->Dv, 1, 3, NULL, &made);
  for (int at = 0; at < x->n_vecs * W; at += W) {
    vec sum = {0};
    for (int d = 0; d < c->Dv; d++)
      sum = fma_(load(rows->g.at + d * LANES + at), load(made.at + d * LANES + at), sum);
    store(rows->back.fixed + at, load(rows->back.fixed + at) + sum);
  }
#endif
  for (int lane = 0; lane < x->n; lane++)
    ((REAL *)c->total)[rows->number[lane]] = rows->back.fixed[lane];
}

static void query_unit(Call *c, int64_t unit, QueryRoom *room) {
  int64_t heads = c->B * c->G, b = unit % heads / c->G, g = unit % c->G, last = 0, first = c->S;
  int64_t from = unit / heads * c->per_unit, seen[LANES];
  int n = (int)least(c->per_unit, blocks_per_key_head(c) - from), D = c->D;
  size_t size = sizeof(REAL) * LANES * whole_groups(D);
  for (int r = 0; r < n; r++) {
    QueryRows *rows = room->rows + r;
    Block *x = &rows->x;
    begin(c, b, g, from + r, x);
    pack_queries(c, x, room->turned, &rows->q);
    if (c->g.data) pack_of_queries(&c->g, x, c->Dv, 1, 3, room->turned, &rows->g);
    memset(&rows->back, 0, sizeof rows->back);
    for (int lane = 0; lane < x->n; lane++) {
      rows->number[lane] = row_number(c, x, lane);
      read_back(c, rows->number[lane], lane, &rows->back);
    }
    if (c->g.data) complete(c, room, rows);
    memset(rows->dq, 0, size);
    first = least(first, x->reach.first);
    last = most(last, x->reach.last);
  }
  for (int64_t j0 = first / KEYS * KEYS; j0 < last; j0 += KEYS) {
    int m = (int)(least(j0 + KEYS, last) - j0);
    pack_key_rows(c, b, g, j0, m, &room->keys);
    pack_columns(&c->k, b, g, j0, m, D, 1, 3, NULL, &room->columns);
    if (c->g.data) pack_rows(&c->v, b, g, j0, m, c->Dv, 1, 3, &room->values);
    for (int r = 0; r < n; r++) {
      QueryRows *rows = room->rows + r;
      const Block *x = &rows->x;
      const Back *back = &rows->back;
      if (x->reach.last <= j0 || x->reach.first >= j0 + m) continue;
      int skip = (int)most(0, x->reach.first - j0) / STEP * STEP;
      int few = (int)least(m, x->reach.last - j0) - skip;
      if (nothing_shown(c, b, x->q, x->n, j0 + skip, few)) continue;
      Packed keys = rows_from(room->keys, skip, c->depth), columns = columns_from(room->columns, skip);
      Packed values = rows_from(room->values, skip, c->Dv);
      score(c, x, rows->q, keys, j0 + skip, few, room->s, room->slope, seen);
      if (c->g.data) products(values, rows->g, room->d, few, c->Dv, x->n_vecs, 3, 0);
      for (int at = 0; at < x->n_vecs * W; at += W) {
        vec high = load(back->high + at), low = load(back->low + at), p;
        vec fixed = load(back->fixed + at), entropy = load(back->entropy + at);
        for (int j = 0; j < few; j++) {
          REAL *d = room->d + j * LANES + at;
          vec gv = c->g.data ? load(d) : (vec){0};
          vec slope = c->softcap > 0 ? load(room->slope + j * LANES + at) : every(1);
          store(d, slope_of(load(room->s + j * LANES + at), gv, slope, high, low, fixed, entropy, &p));
        }
      }
      Packed d = ready_gradients(room->d, few, x->n_vecs, room->gradients);
      add_products(columns, m, d, rows->dq, D, few, x->n_vecs, 3, NULL);
    }
  }
  REAL scale[LANES];
  for (int lane = 0; lane < LANES; lane++) scale[lane] = (REAL)c->scale;
  for (int r = 0; r < n; r++) {
    const QueryRows *rows = room->rows + r;
    put_lanes(rows->dq, D, rows->x.n, scale, c->dq, SINGLE ? FLOAT32 : FLOAT64, rows->number);
  }
}

// Keys in the lanes ---------------------------------------------------------------------------------

typedef struct {
  Keys x;
  Packed k, v;            // (D, LANES), (Dv, LANES)
  REAL *dk, *dv;          // the gradients, in whole groups
} KeyColumns;

typedef struct {
  Packed queries, query_columns, g, g_columns;    // a tile's queries, and what comes back into them
  REAL *s, *d, *slope;                            // (queries, LANES)
  REAL *weights, *gradients, *turned;             // s and d as they are multiplied; lanes being turned
  KeyColumns *columns;
} KeyRoom;

INLINE int all_finite(const REAL *x, int n, REAL factor) {
  REAL zero = 0;
  for (int d = 0; d < n; d++) zero += x[d] * factor * 0;
  return zero == 0;
}

// A tile's queries and what comes back into them. A query may hold anything, and so may what comes
// back into a spoiled row: zeros in their place keep them from the keys that are hidden from it, and
// the others are NaN by its weights.
static void pack_tile(const Call *c, const Tile *t, KeyRoom *room) {
  const REAL *lse = (const REAL *)c->lse + (t->b * c->H + t->h) * c->T + t->i0;
  REAL query[c->D + 1], scale = (REAL)c->scale;
  uint8_t spoiled[QUERIES];
  int n = t->n;
  for (int i = 0; i < n; i++) {
    const REAL *row = row_of(&c->q, t->b, t->h, t->i0 + i, c->D, query);
    spoiled[i] = !all_finite(row, c->D, SPLIT ? 1 : scale);  // split, they are scaled in one step with their power
  }
  pack_tile_queries(c, t, &room->queries);
  pack_columns(&c->q, t->b, t->h, t->i0, n, c->D, scale, 3, spoiled, &room->query_columns);
  if (!c->g.data) return;
  for (int i = 0; i < n; i++) spoiled[i] = lse[i] != lse[i];
  pack_rows(&c->g, t->b, t->h, t->i0, n, c->Dv, 1, 3, &room->g);
  pack_columns(&c->g, t->b, t->h, t->i0, n, c->Dv, 1, 3, spoiled, &room->g_columns);
}

static void key_tile(Call *c, const Tile *t, const KeyRoom *room, const KeyColumns *to) {
  const Keys *x = &to->x;
  int64_t row = (t->b * c->H + t->h) * c->T + t->i0;
  Span span = span_of(t, x);
  int from = span.from, n = span.to - span.from;
  if (!n || nothing_shown(c, t->b, t->q + from, n, x->j0, x->n)) return;
  REAL *s_from = room->s + from * LANES, *d_from = room->d + from * LANES;
  score_crossed(c, t, span, x, room->queries, to->k, room->s, room->slope);
  if (c->g.data) products(rows_from(room->g, from, c->Dv), to->v, d_from, n, c->Dv, x->n_vecs, 3, 1);
  for (int i = span.from; i < span.to; i++) {
    Back back;
    read_back(c, row + i, 0, &back);
    vec high = every(back.high[0]), low = every(back.low[0]);
    vec fixed = every(back.fixed[0]), entropy = every(back.entropy[0]);
    for (int at = 0; at < x->n_vecs * W; at += W) {
      REAL *s = room->s + i * LANES + at, *d = room->d + i * LANES + at;
      vec p, gv = c->g.data ? load(d) : (vec){0};
      vec slope = c->softcap > 0 ? load(room->slope + i * LANES + at) : every(1);
      store(d, slope_of(load(s), gv, slope, high, low, fixed, entropy, &p));
      store(s, p);
    }
  }
  Packed g = columns_from(room->g_columns, from), q = columns_from(room->query_columns, from);
  Packed p = ready_weights(s_from, n, x->n_vecs, room->weights);
  if (c->g.data) add_products(g, t->n, p, to->dv, c->Dv, n, x->n_vecs, 3, NULL);
  Packed d = ready_gradients(d_from, n, x->n_vecs, room->gradients);
  add_products(q, t->n, d, to->dk, c->D, n, x->n_vecs, 3, NULL);
}

static void key_unit(Call *c, int64_t unit, KeyRoom *room) {
  int64_t heads = c->B * c->G, b = unit % heads / c->G, g = unit % c->G, group = c->H / c->G;
  int64_t first = unit / heads * c->per_unit * LANES, last = c->S;
  int n = (int)least(c->per_unit, (c->S - first + LANES - 1) / LANES);
  last = least(last, first + (int64_t)n * LANES);
  for (int r = 0; r < n; r++) {
    KeyColumns *to = room->columns + r;
    to->x = keys_from(b, g, first + r * LANES, c->S);
    pack_key_lanes(c, &to->x, room->turned, &to->k);
    if (c->g.data) pack_of_keys(&c->v, &to->x, c->Dv, 3, room->turned, &to->v);
    memset(to->dk, 0, sizeof(REAL) * LANES * whole_groups(c->D));
    memset(to->dv, 0, sizeof(REAL) * LANES * whole_groups(c->Dv));
  }
  for (int64_t h = g * group; h < (g + 1) * group; h++)
    for (int64_t i0 = 0; i0 < c->T; i0 += QUERIES) {
      Tile t;
      begin_tile(c, b, h, i0, c->T, &t);
      if (t.reach.last <= first || t.reach.first >= last) continue;
      pack_tile(c, &t, room);
      for (int r = 0; r < n; r++) key_tile(c, &t, room, room->columns + r);
    }
  REAL one[LANES];
  int64_t number[LANES];
  for (int lane = 0; lane < LANES; lane++) one[lane] = 1;
  for (int r = 0; r < n; r++) {
    const KeyColumns *to = room->columns + r;
    int64_t row = (b * c->G + g) * c->S + to->x.j0, dtype = SINGLE ? FLOAT32 : FLOAT64;
    for (int lane = 0; lane < LANES; lane++) number[lane] = row + lane;
    put_lanes(to->dk, c->D, to->x.n, one, c->dk, dtype, number);
    if (c->dv) put_lanes(to->dv, c->Dv, to->x.n, one, c->dv, dtype, number);
  }
}
