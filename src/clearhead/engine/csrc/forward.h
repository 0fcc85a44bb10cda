// Forward: one tile of keys after the other into the blocks that see any of it.
#pragma once
#include "softmax.h"

// Room for a thread: the tile, packed, its scores and weights, queries being turned into lanes, and
// the rows of as many blocks as share the tile.
typedef struct {
  Packed keys, values;
  REAL *s[2], *weights[2], *turned, *made;
  Rows *rows;
} Room;

// What a block adds to its output, under way: the weights times the values, and its factors.
typedef struct {
  Products products;
  Rows *rows;  // NULL: there is none
  REAL factors[LANES];
  int moved;
} Adding;

static void start_adding(
    const Call *c, Adding *a, Packed values, int64_t apart, int n, const Room *room, int turn) {
  Rows *rows = a->rows;
#if defined(AMX)
  Packed weights = {room->weights[turn], 0};
  start_columns(&a->products, values, apart, weights, room->made, c->Dv, n, rows->x.n_vecs,
                parts_of(&c->v));
#else
  Packed weights = {room->s[turn], 0};
  add_products(values, apart, weights, rows->o, c->Dv, n, rows->x.n_vecs, 1,
               a->moved ? a->factors : NULL);
#endif
}

static void finish_adding(const Call *c, Adding *a, const Room *room) {
#if defined(AMX)
  if (!a->rows) return;
  finish_products(&a->products);
  add_sums(room->made, a->rows->o, c->Dv, a->rows->x.n_vecs, a->moved ? a->factors : NULL);
#endif
  (void)c, (void)room;
  a->rows = NULL;
}

// What a block sees of a tile of keys j0:j1: n keys behind the first `skip`.
typedef struct {
  int skip, n;
} Share;

INLINE void absorb_(
    const Call *call, Rows *rows, Packed values, int64_t apart, int64_t j0, int n, const Room *room,
    int turn, Products *next, Adding *before, int figures) {
  REAL old[LANES], *s = room->s[turn];
  REAL *ready = values.at ? room->weights[turn] : NULL;
  Adding adding = {.rows = rows, .moved = 0};
  Products *beside[2] = {&before->products, next};
  Sums t = {0};
  int width = rows->x.n_vecs * W;
  apply_rule(call, &rows->x, j0, n, s, NULL, rows->seen);
  if (call->key_scores) read_picks(call, rows, j0, n, s);
  memcpy(old, rows->m, sizeof old);
  int moved = find_largest(s, n, rows->x.n_vecs, j0, rows, figures);
  for (int at = 0; at < width; at += W)
    weigh(s, n, at, rows, &t, ready, call->distance != NULL, beside, figures);
  adding.moved = moved;
  if (moved) rescale(rows, old, adding.factors, figures);
  if (call->distance) add_distance(rows, j0, n, s, &t);
  for (int lane = 0; lane < width; lane++) {
    double l = (double)t.ones[lane] + t.rest[lane];
    rows->l[lane] += l;
    if (figures) {
      rows->u[lane] += t.u[lane];
      rows->c[lane] += (double)j0 * l + t.c[lane];
    }
  }
  finish_adding(call, before, room);
  if (!values.at) return;
  *before = adding;
  start_adding(call, before, values, apart, n, room, turn);
}

// Of the products of a block and its share of a tile, in s, all sums.
static __attribute__((noinline)) void absorb(
    const Call *c, Rows *rows, Packed values, int64_t j0, int64_t j1, Share share, const Room *room,
    int turn, Products *next, Adding *before) {
  if (values.at) values = columns_from(values, share.skip);
  j0 += share.skip;
  if (c->figures) absorb_(c, rows, values, j1 - j0 + share.skip, j0, share.n, room, turn, next, before, 1);
  else absorb_(c, rows, values, j1 - j0 + share.skip, j0, share.n, room, turn, next, before, 0);
}

// The next of n blocks, from r on, that sees any key of a tile, with its share; n if there is none.
static int next_block(const Call *c, const Room *room, int r, int n, int64_t j0, int64_t j1, Share *share) {
  for (; r < n; r++) {
    const Block *x = &room->rows[r].x;
    if (x->reach.last <= j0 || x->reach.first >= j1) continue;
    share->skip = (int)(most(0, x->reach.first - j0) / STEP * STEP);
    share->n = (int)(least(j1, x->reach.last) - j0 - share->skip);
    if (!nothing_shown(c, x->b, x->q, x->n, j0 + share->skip, share->n)) break;
  }
  return r;
}

// The results of rows that have seen all their keys; a sink is one more outcome.
static void finish_rows(const Call *c, const Rows *rows) {
  const Block *x = &rows->x;
  REAL share[LANES] = {0};
  int64_t number[LANES];
  for (int lane = 0; lane < x->n; lane++) {
    int64_t row = row_number(c, x, lane);
    number[lane] = row;
    double m = rows->m[lane], l = rows->l[lane], u = rows->u[lane], key = rows->c[lane];
    double factor = 1, sink = 0, distance = l == 0 ? 0 : rows->a[lane] / l;
    int nothing = l == 0, spoiled = l != l || (nothing && rows->seen[lane]);
    double s = c->sinks ? (REAL)c->sinks[x->q[lane].h] : -INFINITY;
    if (s != -INFINITY) {
      double both = nothing || s > m ? s : m;
      double d = nothing ? 0 : at_least(-800, m - both);
      factor = nothing ? 0 : exp(d);
      sink = exp(s - both);
      u = nothing ? 0 : (u + d * l) * factor;
      u += sink == 0 ? 0 : sink * (s - both);
      l = l * factor + sink;
      m = both;
    }
    int empty = l == 0;
    double some = empty ? 1 : l, log_l = log(some), entropy = log_l - u / some;
    REAL lse = empty ? (REAL)-INFINITY : (REAL)(m + log_l);
    ((REAL *)c->lse)[row] = spoiled ? NAN : lse;
    ((REAL *)c->lse_low)[row] = empty || spoiled ? 0 : (REAL)((m - lse) + log_l);
    if (c->figures) {
      ((REAL *)c->entropy)[row] = spoiled ? NAN : entropy <= 0 ? 0 : entropy;
      ((REAL *)c->max_score)[row] = spoiled ? NAN : nothing ? -INFINITY : rows->m[lane];
      ((REAL *)c->mean_key)[row] = spoiled ? NAN : key * factor / some;
      ((REAL *)c->visible)[row] = rows->seen[lane];
      c->top_key[row] = nothing || spoiled ? -1 : rows->top[lane];
    }
    if (c->distance) {
      ((REAL *)c->distance)[row] = spoiled ? NAN : distance;
      for (int p = 0; p < 3; p++)
        ((REAL *)c->key_scores)[3 * row + p] = spoiled ? NAN : rows->picks[p][lane];
    }
    share[lane] = spoiled ? NAN : (REAL)(factor / some);
  }
  if (c->out) put_lanes(rows->o, c->Dv, x->n, share, c->out, c->q.dtype, number);
}

static void start_block(const Call *c, const Room *room, int r, Share share, REAL *s, Products *p) {
  const Rows *rows = room->rows + r;
  Packed keys = rows_from(room->keys, share.skip, c->depth);
  start_scores(c, p, keys, rows->q, share.n, rows->x.n_vecs, 0, s);
}

// A tile, packed, into each of n blocks that sees any of it. Where products can run beside the softmax of
// another block, its scores are begun before that, and what it adds to its output behind it.
static void absorb_tile(const Call *c, const Room *room, int n, int64_t j0, int64_t j1) {
  Packed values = c->out ? room->values : (Packed){NULL, 0};
  Share share = {0, 0}, next_share = {0, 0};
  Products products = {0};
  Adding adding = {.rows = NULL};
  int turn = 0, r = next_block(c, room, 0, n, j0, j1, &share);
  if (r < n) start_block(c, room, r, share, room->s[turn], &products);
  for (int next; r < n; r = next, share = next_share, turn ^= SPLIT) {
    next = next_block(c, room, r + 1, n, j0, j1, &next_share);
    finish_scores(c, &products, share.n, room->s[turn]);
    if (SPLIT && next < n) start_block(c, room, next, next_share, room->s[1 - turn], &products);
    absorb(c, room->rows + r, values, j0, j1, share, room, turn, &products, &adding);
    if (!SPLIT && next < n) start_block(c, room, next, next_share, room->s[0], &products);
  }
  finish_adding(c, &adding, room);
}

static void forward_unit(Call *c, int64_t unit, Room *room) {
  int64_t per_head = blocks_per_key_head(c), at = unit / (c->B * c->G) * c->per_unit;
  int64_t b = unit % (c->B * c->G) / c->G, g = unit % c->G, last = 0, first = c->S;
  int n = least(c->per_unit, per_head - at);
  for (int r = 0; r < n; r++) {
    Rows *rows = room->rows + r;
    begin_rows(c, b, g, at + r, room->turned, rows);
    if (rows->x.reach.first >= rows->x.reach.last) continue;
    first = least(first, rows->x.reach.first);
    last = most(last, rows->x.reach.last);
  }
  for (int64_t j0 = first / KEYS * KEYS; j0 < last; j0 += KEYS) {
    int64_t j1 = least(j0 + KEYS, least(c->S, last));
    pack_key_rows(c, b, g, j0, j1 - j0, &room->keys);
    if (c->out) note(c, pack_columns(&c->v, b, g, j0, j1 - j0, c->Dv, 1, parts_of(&c->v), NULL, &room->values));
    absorb_tile(c, room, n, j0, j1);
  }
  for (int r = 0; r < n; r++) finish_rows(c, room->rows + r);
}
