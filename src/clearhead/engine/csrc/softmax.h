// What the rows of a block remember of the keys that they have seen, and what a tile of scores adds to
// it: weights and all their sums in one pass. The algebra is that of softmax.py, whose letters these are;
// what a lane is lies in block.h.
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
  Packed q;                     // (D, LANES), scaled
  REAL *o;                      // (Dv in whole groups, LANES)
} Rows;

// Sums over one tile, relative to the new m.
typedef struct {
  REAL ones[LANES], rest[LANES];  // how many weights are 1, and the sum of all others
  REAL u[LANES], c[LANES];        // c with the keys counted from the tile's first
} Sums;

static void begin_rows(Call *c, int64_t b, int64_t g, int64_t n, REAL *turned, Rows *rows) {
  begin(c, b, g, n, &rows->x);
  pack_queries(c, &rows->x, turned, &rows->q);
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
    int here = any_less(load(rows->m + x * W), m[x]);
    moved |= here;
    store(rows->m + x * W, m[x]);
    for (int i = 0; i < W && figures && here; i++) {
      INT first = top[x][i] < 0 ? 0 : top[x][i], at = first;
      for (INT e = 7; e >= 0; e--) {
        INT key = first + e < n ? first + e : n - 1;
        at = s[key * LANES + x * W + i] == m[x][i] ? key : at;
      }
      rows->top[x * W + i] = top[x][i] < 0 ? rows->top[x * W + i] : j0 + at;
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

// Weights in place of the scores, and their sums. Where numbers are split their parts go to `ready`, if
// anything is to be multiplied by them, and the weights themselves to their place only if they are `kept`;
// and `beside` them, for tiles and vectors
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
    if (ready) put_pair(first, second, place_of_pair(ready, j, at), VECS * TILE, PARTS, 1);
    // Three pairs in four: for heads of 64 that is all there is to multiply, spread evenly.
    if (j % 8 && !some_products(beside[0])) some_products(beside[1]);
    if (kept) store(here, first), store(here + LANES, second);
  }
  for (int j = (n + 1) / 2 * 2; j < whole_tiles(n) && ready; j += 2)
    put_pair((vec){0}, (vec){0}, place_of_pair(ready, j, at), VECS * TILE, PARTS, 1);
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
