// Forward: one tile of keys after the other, every sum of a row in one pass. The algebra is that of
// softmax.py, whose letters these are; what a lane is lies in block.h.
#pragma once
#include "scores.h"

enum { KEYS = 128 };  // keys in a tile: its weights, (KEYS, LANES), stay in the nearest cache

// What a block's queries remember of the keys that they have seen. l is summed in double: where one
// key has nearly all the weight it is 1 + little, and the entropy is made of the little.
typedef struct {
  Block x;
  REAL m[LANES];                // the largest score, the lowest number before any is seen
  double l[LANES], u[LANES], c[LANES], a[LANES];
  int64_t seen[LANES], top[LANES];
  REAL picks[3][LANES];         // scores of the first key, of the one before its own, of its own
  REAL *q, *o;                  // (D, LANES) scaled, and (Dv in whole groups, LANES)
} Rows;

// Sums over one tile, relative to the new m.
typedef struct {
  REAL ones[LANES], rest[LANES];  // how many weights are 1, and the sum of all others
  REAL u[LANES], c[LANES];        // c with the keys counted from the tile's first
} Sums;

static void begin_rows(Call *c, int64_t b, int64_t g, int64_t n, REAL *turned, Rows *rows) {
  begin(c, b, g, n, &rows->x);
  pack_queries(c, &rows->x, turned, rows->q);
  memset(rows->o, 0, sizeof(REAL) * LANES * whole_groups(c->Dv));
  for (int lane = 0; lane < LANES; lane++) {
    rows->m[lane] = FINITE_MIN;
    rows->l[lane] = rows->u[lane] = rows->c[lane] = rows->a[lane] = 0;
    rows->seen[lane] = 0;
    rows->top[lane] = -1;
    for (int p = 0; p < 3; p++) rows->picks[p][lane] = NAN;
  }
}

// The numbers of a tile's keys, which a sum takes out of memory.
#define EIGHT(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
#define MORE(n) EIGHT(n), EIGHT(n + 8), EIGHT(n + 16), EIGHT(n + 24)
static const REAL NUMBERS[] = {MORE(0), MORE(32), MORE(64), MORE(96), 128};
_Static_assert(sizeof NUMBERS / sizeof(REAL) > KEYS, "a number for each key");

// The new largest scores, and where they are: the lowest key of equals. Whether any has changed.
// All vectors side by side: each waits for the one above it, and so none waits alone. Of eight keys
// the largest is found first; which it was is asked once, of the eight with the row's largest.
INLINE int largest_of(
    const REAL *s, int n, int n_vecs, int64_t j0, Rows *rows, int figures) {
  vec m[VECS];
  ivec top[VECS];
  int moved = 0, j = 0;
  for (int x = 0; x < n_vecs; x++) m[x] = load(rows->m + x * W), top[x] = ievery(-1);
  for (; j + 8 <= n; j += 8)
    for (int x = 0; x < n_vecs; x++) {
      const REAL *at = s + j * LANES + x * W;
      vec a = greatest(load(at), load(at + LANES)), b = greatest(load(at + 2 * LANES), load(at + 3 * LANES));
      vec c = greatest(load(at + 4 * LANES), load(at + 5 * LANES));
      vec here = greatest(load(at + 6 * LANES), load(at + 7 * LANES));
      here = greatest(greatest(a, b), greatest(c, here));
      if (figures) top[x] = (ivec)if_less(m[x], here, (vec)ievery(j), (vec)top[x]);
      m[x] = greatest(here, m[x]);
    }
  for (; j < n; j++)
    for (int x = 0; x < n_vecs; x++) {
      vec here = load(s + j * LANES + x * W);
      if (figures) top[x] = (ivec)if_less(m[x], here, (vec)ievery(j), (vec)top[x]);
      m[x] = greatest(here, m[x]);
    }
  for (int x = 0; x < n_vecs; x++) {
    moved |= any_less(load(rows->m + x * W), m[x]);
    store(rows->m + x * W, m[x]);
    for (int i = 0; i < W && figures; i++) {
      int at = top[x][i];
      if (at < 0) continue;
      while (at + 1 < n && s[at * LANES + x * W + i] != m[x][i]) at++;
      rows->top[x * W + i] = j0 + at;
    }
  }
  return moved;
}

INLINE int find_largest(
    const REAL *s, int n, int n_vecs, int64_t j0, Rows *rows, int figures) {
  if (n_vecs == 1) return largest_of(s, n, 1, j0, rows, figures);
  if (VECS == 2 || n_vecs == 2) return largest_of(s, n, 2, j0, rows, figures);
  return largest_of(s, n, VECS, j0, rows, figures);
}

// Sums of a vector's lanes while they run: those of Sums, but all weights in place of those that are 1.
typedef struct {
  vec all, rest, u, c;
} Running;

// The weight of a score, added to the sums.
INLINE vec weight(vec s, vec m, int j, Running *sums, int figures) {
  vec p = exp_and_product(s - m, &sums->u);
  sums->all += p;
  sums->rest = add_if_less(p, every(1), sums->rest, p);
  if (figures) sums->c = fma_(p, every(NUMBERS[j]), sums->c);
  return p;
}

// Weights in place of the scores, and their sums. Where numbers are split their parts go to `ready`, and
// the weights themselves to their place only if they are `kept`; and `beside` them, for tiles and vectors
// have units of their own, the products of two other blocks are made: what the one before adds to its
// output, and the scores of the next.
INLINE void weigh(
    REAL *s, int n, int at, const Rows *rows, Sums *sums, REAL *ready, int kept, Products *beside[2],
    int figures) {
  vec m = load(rows->m + at);
  Running run = {{0}, {0}, {0}, {0}};
#if defined(AMX)
  if (n % 2) store(s + n * LANES + at, every(-INFINITY));  // a pair's other half
  for (int j = 0; j < n; j += 2) {
    REAL *here = s + j * LANES + at;
    vec first = weight(load(here), m, j, &run, figures);
    vec second = weight(load(here + LANES), m, j + 1, &run, figures);
    put_pair(first, second, place_of_pair(ready, j, at), PARTS, 1);
    if (j % 8 && !some_products(beside[0])) some_products(beside[1]);
    if (kept) store(here, first), store(here + LANES, second);
  }
  for (int j = (n + 1) / 2 * 2; j < whole_tiles(n); j += 2)
    put_pair((vec){0}, (vec){0}, place_of_pair(ready, j, at), PARTS, 1);
#else
  (void)ready, (void)kept, (void)beside;
  for (int j = 0; j < n; j++) {
    REAL *here = s + j * LANES + at;
    store(here, weight(load(here), m, j, &run, figures));
  }
#endif
  store(sums->ones + at, nearest(run.all - run.rest));  // a number of weights, and so whole
  store(sums->rest + at, run.rest);
  if (figures) store(sums->u + at, run.u);
  store(sums->c + at, run.c);
}

// So that no difference of two numbers is infinite: 0 times that is NaN.
INLINE double at_least(double low, double x) { return x < low ? low : x; }

// What has been summed up so far, brought to the new m, but for the output, which has its factors.
static void rescale(Rows *rows, const REAL *old, REAL *factor, int figures) {
  int width = rows->x.n_vecs * W;
  for (int at = 0; at < width; at += W)
    store(factor + at, exp_(greatest(every(LOWEST), load(old + at) - load(rows->m + at))));
  for (int lane = 0; lane < width; lane++) {
    double f = factor[lane];
    if (figures) {
      double d = at_least(LOWEST, (double)old[lane] - rows->m[lane]);
      rows->u[lane] = (rows->u[lane] + d * rows->l[lane]) * f;
      rows->c[lane] *= f;
      rows->a[lane] *= f;
    }
    rows->l[lane] *= f;
  }
}

// The scores of three keys of each query, where they lie in this tile.
static void read_picks(const Call *c, Rows *rows, int64_t j0, int n, const REAL *s) {
  const Block *x = &rows->x;
  for (int lane = 0; lane < x->n; lane++) {
    const Query *q = &x->q[lane];
    int64_t keys[3] = {c->first_key[x->b * c->T + q->i], q->own - 1, q->own};
    for (int p = 0; p < 3; p++)
      if (keys[p] >= j0 && keys[p] < j0 + n && sees(c, x->b, q, keys[p]))
        rows->picks[p][lane] = s[(keys[p] - j0) * LANES + lane];
  }
}

// Adds how far the keys of a tile lie from where each query stands, by their weights. Where all of
// them lie on one side the sums of the tile tell; else it is another pass.
static void add_distance(Rows *rows, int64_t j0, int n, const REAL *p, const Sums *t) {
  const Block *x = &rows->x;
  REAL own[LANES] = {0}, apart[LANES] = {0};
  int crossing = 0;
  for (int lane = 0; lane < x->n; lane++) {
    int64_t at = x->q[lane].own - j0;  // counted like the keys of the tile
    if (at > 0 && at < n) {
      own[lane] = (REAL)at;
      crossing = 1;
    } else {
      double l = (double)t->ones[lane] + t->rest[lane], ahead = t->c[lane] - (double)at * l;
      rows->a[lane] += at > 0 ? -ahead : ahead;
    }
  }
  for (int at = 0; at < x->n_vecs * W && crossing; at += W) {
    vec sum = {0}, key = {0}, stands = load(own + at);
    for (int j = 0; j < n; j++, key += every(1)) {
      vec lag = stands - key;
      sum = fma_(load(p + j * LANES + at), greatest(lag, -lag), sum);
    }
    store(apart + at, sum);
  }
  for (int lane = 0; lane < x->n; lane++)
    if (own[lane] > 0) rows->a[lane] += apart[lane];
}

// Room for a thread: the tile, packed, its scores and weights, queries being turned into lanes, and
// the rows of as many blocks as share the tile.
typedef struct {
  REAL *keys, *values, *s[2], *weights[2], *turned, *made;
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
    const Call *c, Adding *a, const REAL *values, int64_t apart, int n, const Room *room, int turn) {
  Rows *rows = a->rows;
#if defined(AMX)
  start_columns(&a->products, values, apart, room->weights[turn], room->made, c->Dv, n, rows->x.n_vecs,
                parts_of(&c->v));
#else
  add_products(values, apart, room->s[turn], rows->o, c->Dv, n, rows->x.n_vecs, 1,
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
    const Call *call, Rows *rows, const REAL *values, int64_t apart, int64_t j0, int n,
    const Room *room, int turn, Products *next, Adding *before, int figures) {
  REAL old[LANES], *s = room->s[turn];
  Adding adding = {.rows = rows, .moved = 0};
  Products *beside[2] = {&before->products, next};
  Sums t = {0};
  int width = rows->x.n_vecs * W;
  apply_rule(call, &rows->x, j0, n, s, NULL, rows->seen);
  if (call->key_scores) read_picks(call, rows, j0, n, s);
  memcpy(old, rows->m, sizeof old);
  int moved = find_largest(s, n, rows->x.n_vecs, j0, rows, figures);
  for (int at = 0; at < width; at += W)
    weigh(s, n, at, rows, &t, room->weights[turn], call->distance != NULL, beside, figures);
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
  if (!values) return;
  *before = adding;
  start_adding(call, before, values, apart, n, room, turn);
}

// Of the products of a block and its share of a tile, in s, all sums.
static __attribute__((noinline)) void absorb(
    const Call *c, Rows *rows, const REAL *values, int64_t j0, int64_t j1, Share share,
    const Room *room, int turn, Products *next, Adding *before) {
  if (values) values = columns_from(values, share.skip);
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
  const REAL *keys = rows_from(room->keys, share.skip, c->depth);
  start_scores(c, p, keys, rows->q, share.n, rows->x.n_vecs, 0, s);
}

// A tile, packed, into each of n blocks that sees any of it. Where products can run beside the softmax of
// another block, its scores are begun before that, and what it adds to its output behind it.
static void absorb_tile(const Call *c, const Room *room, int n, int64_t j0, int64_t j1) {
  const REAL *values = c->out ? room->values : NULL;
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
    pack_key_rows(c, b, g, j0, j1 - j0, room->keys);
    if (c->out)
      note(c, VALUES_SEEN,
           pack_columns(&c->v, b, g, j0, j1 - j0, c->Dv, 1, parts_of(&c->v), NULL, room->values));
    absorb_tile(c, room, n, j0, j1);
  }
  for (int r = 0; r < n; r++) finish_rows(c, room->rows + r);
}
