// The register tile: sums of outer products, which is what every product of matrices here is made of.
//
//     sums[r][lane] += sum over d of rows[r, d] * lanes[d][lane]        r < GROUP, lane < n_vecs W
//
// All sums stay in registers while d runs; a step takes n_vecs vectors and GROUP single numbers.
// Scores are this with d the head size: the keys of a group, by queries side by side. The output is
// this with d the keys: columns of v, by the same queries. Backward is the same four more times.
#pragma once
#include "pack.h"

#define BEGIN_1(r) vec s##r##0 = {0};
#define BEGIN_2(r) BEGIN_1(r) vec s##r##1 = {0};
#define BEGIN_3(r) BEGIN_2(r) vec s##r##2 = {0};
#define TAKE_1 vec b0 = load(lanes);
#define TAKE_2 TAKE_1 vec b1 = load(lanes + W);
#define TAKE_3 TAKE_2 vec b2 = load(lanes + 2 * W);
#define ADD(r, x) s##r##x = MULTIPLY_ADD(a, b##x, s##r##x);
#define STEP_1(r) { vec a = every(rows[r * across]); ADD(r, 0) }
#define STEP_2(r) { vec a = every(rows[r * across]); ADD(r, 0) ADD(r, 1) }
#define STEP_3(r) { vec a = every(rows[r * across]); ADD(r, 0) ADD(r, 1) ADD(r, 2) }
#define PUT(r, x) put_sums(sums + r * LANES + x * W, s##r##x, fresh, factors ? factors + x * W : NULL);
#define END_1(r) PUT(r, 0)
#define END_2(r) PUT(r, 0) PUT(r, 1)
#define END_3(r) PUT(r, 0) PUT(r, 1) PUT(r, 2)

// A tile's sums begin with 0 and are added to what there was before them, if anything, times the
// lane's factor, if there is one: a number that is added to a sum of thousands one by one would lose
// its digits there.
INLINE void put_sums(REAL *to, vec x, int fresh, const REAL *factors) {
  if (fresh) store(to, x);
  else store(to, factors ? fma_(load(to), load(factors), x) : load(to) + x);
}

#define OUTER(name, n)                                                                         \
  INLINE void name##_##n(                                                                      \
      const REAL *rows, int64_t across, int64_t along, const REAL *lanes, REAL *sums, int depth, \
      int fresh, const REAL *factors) {                                                        \
    EACH_ROW(BEGIN_##n)                                                                        \
    for (int d = 0; d < depth; d++, rows += along, lanes += LANES) {                           \
      TAKE_##n                                                                                 \
      EACH_ROW(STEP_##n)                                                                       \
    }                                                                                          \
    EACH_ROW(END_##n)                                                                          \
  }
#define MULTIPLY_ADD fma_
OUTER(outer, 1)
OUTER(outer, 2)
#if defined(AVX512) || defined(__aarch64__)
#define OUTER_3
OUTER(outer, 3)
#endif

#if defined(PAIRS)  // the same where each number stands for two of bfloat16
#undef MULTIPLY_ADD
#define MULTIPLY_ADD add_pairs
OUTER(pairs, 1)
OUTER(pairs, 2)
OUTER(pairs, 3)
#endif

INLINE void groups(
    const REAL *rows, int64_t apart, int64_t across, int64_t along, const REAL *lanes, REAL *sums,
    int n, int depth, int n_vecs, int fresh, const REAL *factors) {
  for (int r = 0; r < n; r += GROUP, rows += apart, sums += GROUP * LANES) {
    if (n_vecs == 1) outer_1(rows, across, along, lanes, sums, depth, fresh, factors);
    else if (VECS == 2 || n_vecs == 2) outer_2(rows, across, along, lanes, sums, depth, fresh, factors);
#if defined(OUTER_3)
    else outer_3(rows, across, along, lanes, sums, depth, fresh, factors);
#endif
  }
}

// n rows one below the other, (n, depth), n rounded up to whole groups, by lanes (depth, LANES): new
// sums (n, LANES).
static __attribute__((noinline)) void products(
    Packed rows, Packed lanes, REAL *sums, int n, int depth, int n_vecs, int parts, int crossed) {
  (void)parts, (void)crossed;
  groups(rows.at, (int64_t)GROUP * depth, depth, 1, lanes.at, sums, n, depth, n_vecs, 1, NULL);
}

#if defined(PAIRS)
// The same of pairs, with each sum times a factor at the end.
static __attribute__((noinline)) void products_of_pairs(
    const REAL *rows, const REAL *lanes, REAL *sums, int n, int depth, int n_vecs, REAL factor) {
  for (int r = 0; r < n; r += GROUP, rows += GROUP * depth, sums += GROUP * LANES) {
    if (n_vecs == 1) pairs_1(rows, depth, 1, lanes, sums, depth, 1, NULL);
    else if (n_vecs == 2) pairs_2(rows, depth, 1, lanes, sums, depth, 1, NULL);
    else pairs_3(rows, depth, 1, lanes, sums, depth, 1, NULL);
    for (int i = 0; i < GROUP * LANES; i += W) store(sums + i, load(sums + i) * every(factor));
  }
}
#endif

// n columns in groups, (n / GROUP, `apart`, GROUP), of which the first `depth` rows count, by lanes
// (depth, LANES): added to sums (n, LANES), after those were multiplied by a factor a lane, if given.
static __attribute__((noinline)) void add_products(
    Packed columns, int64_t apart, Packed lanes, REAL *sums, int n, int depth, int n_vecs, int parts,
    const REAL *factors) {
  (void)parts;
  groups(columns.at, GROUP * apart, 1, GROUP, lanes.at, sums, n, depth, n_vecs, 0, factors);
}

// Room, in numbers, for rows (n, depth), for n rows of so many columns, and for lanes (depth, LANES); and
// what there is of them from row `skip` on, a multiple of STEP.
INLINE int64_t rows_size(int64_t n, int64_t depth) { return whole_groups(n) * depth; }
INLINE int64_t columns_size(int64_t n, int64_t width) { return n * whole_groups(width); }
INLINE int64_t lanes_size(int64_t depth) { return depth * LANES; }
INLINE Packed rows_from(Packed rows, int skip, int depth) { return (Packed){rows.at + skip * depth, 0}; }
INLINE Packed columns_from(Packed columns, int skip) { return (Packed){columns.at + skip * GROUP, 0}; }

// Rows i0:i0 + n of an array, times a factor, (groups, GROUP, depth), with zeros behind the last.
static vec pack_rows(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int depth, REAL factor, int parts,
    Packed *packed) {
  vec seen = {0};
  REAL *to = packed->at;
  for (int i = 0; i < n; i++, to += depth) {
    const REAL *row = row_of(x, b, h, i0 + i, depth, to);
    if (row != to) memcpy(to, row, sizeof(REAL) * depth);
    look_at(to, depth, &seen);
    for (int d = 0; d < depth && factor != 1; d++) to[d] *= factor;
  }
  memset(to, 0, sizeof(REAL) * ((GROUP - n % GROUP) % GROUP) * depth);
  (void)parts;
  return seen;
}

// The same rows as columns: (groups of columns, n, GROUP), the columns of a group side by side. Zeros in
// those that are `left_out`, if that is given.
static vec pack_columns(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int width, REAL factor, int parts,
    const uint8_t *left_out, Packed *packed) {
  REAL room[width + 1], *to = packed->at;
  vec seen = {0};
  int whole = width / GROUP * GROUP;
  for (int i = 0; i < n; i++, to += GROUP) {
    const REAL *row = room;
    if (left_out && left_out[i]) memset(room, 0, sizeof room);
    else row = row_of(x, b, h, i0 + i, width, room);
    look_at(row, width, &seen);
    if (factor != 1) {
      for (int d = 0; d < width; d++) room[d] = row[d] * factor;
      row = room;
    }
    for (int d = 0; d < whole; d += GROUP)
      memcpy(to + (size_t)d * n, row + d, sizeof(REAL) * GROUP);
    for (int r = 0; r < GROUP && whole < width; r++)
      to[(size_t)whole * n + r] = whole + r < width ? row[whole + r] : 0;
  }
  (void)parts;
  return seen;
}

// Lanes are multiplied as they are, and weights and their gradients too.
INLINE int lift_of(int64_t bits, REAL factor) {
  (void)bits, (void)factor;
  return 0;
}
INLINE void ready(const REAL *lanes, int depth, int n_vecs, int parts, REAL *to) {
  (void)lanes, (void)depth, (void)n_vecs, (void)parts, (void)to;
}
INLINE Packed ready_weights(REAL *lanes, int depth, int n_vecs, REAL *to) {
  (void)depth, (void)n_vecs, (void)to;
  return (Packed){lanes, 0};
}
INLINE Packed ready_gradients(REAL *lanes, int depth, int n_vecs, REAL *to) {
  return ready_weights(lanes, depth, n_vecs, to);
}

// Products are done when they are started: nothing is gained by doing them beside anything else.
typedef struct {
  int nothing;
} Products;
INLINE int some_products(Products *p) {
  (void)p;
  return 0;
}
INLINE void finish_products(Products *p) { (void)p; }
INLINE void start_products(
    Products *p, Packed rows, Packed lanes, REAL *sums, int n, int depth, int n_vecs, int parts,
    int crossed) {
  (void)p;
  products(rows, lanes, sums, n, depth, n_vecs, parts, crossed);
}
