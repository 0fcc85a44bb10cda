// The products of matrices, by a machine that multiplies whole tiles of bfloat16: AMX.
//
// A float is the sum of three bfloat16 numbers, to the last digit: x = x0 + x1 + x2, each of which has
// the next eight binary digits. Of the nine products of two such sums the six largest are taken,
//
//     x y = x2 y0 + x1 y0 + x1 y1 + x0 y1 + x0 y2 + x0 y0
//
// what is left out being less than a product of floats is rounded by. Each of them is exact, and is
// summed in float; the largest last, so that the small ones are not rounded at its size. Numbers
// below 2^-126 count as 0 here, and so do parts of numbers and their products: what is packed at once,
// if its largest number is very small or very large, is packed times a power of two, of which the sums
// know. That changes no digit, but of numbers that are 2^-86 of the largest beside them, or less.
//
// A tile is 1 KB: 16 rows of 32 numbers, or 16 pairs of rows for as many lanes, or 16 x 16 sums. Which two
// numbers of a row are a pair nobody asks who sums over all: of rows it is i and i + 16, and of columns,
// with the weights they are multiplied by, a number and the next.
#pragma once
#include "call.h"
#include "turn.h"

enum {
  PARTS = 3,
  DEEP = 32,                            // a tile's depth
  TILE = 1024,                          // its bytes
  ROW_TILE = PARTS * TILE,              // of rows, in parts
  LANE_TILE = PARTS * VECS * TILE,      // of lanes, in parts
};

INLINE int64_t tiles_deep(int64_t depth) { return (depth + DEEP - 1) / DEEP; }
INLINE int whole_tiles(int n) { return (n + DEEP - 1) / DEEP * DEEP; }
INLINE int64_t groups_of(int64_t n) { return (n + GROUP - 1) / GROUP; }

// Room, in numbers, for rows (n, depth), for n rows of so many columns, and for lanes (depth, LANES).
INLINE int64_t rows_size(int64_t n, int64_t depth) {
  return groups_of(n) * tiles_deep(depth) * ROW_TILE / (int64_t)sizeof(REAL);
}
INLINE int64_t columns_size(int64_t n, int64_t width) { return rows_size(width, n); }
INLINE int64_t lanes_size(int64_t depth) { return tiles_deep(depth) * LANE_TILE / (int64_t)sizeof(REAL); }

// What there is from row `skip` on, a multiple of STEP.
INLINE Packed rows_from(Packed rows, int skip, int depth) {
  return (Packed){rows.at + rows_size(skip, depth), rows.up};
}
INLINE Packed columns_from(Packed columns, int skip) {
  return (Packed){columns.at + skip / DEEP * ROW_TILE / (int)sizeof(REAL), columns.up};
}

// By which power of two numbers are multiplied beside their factor: 0 where the largest of them, by its
// bits, then lies between 2^-40 and 2^55. 1,024 products of two of the largest end nowhere, and of
// the smallest all parts count.
static int lift_of(int64_t bits, REAL factor) {
  if (!bits || bits >= 0x7f800000 || !(factor < INFINITY && factor > -INFINITY) || factor == 0) return 0;
  int more = ilogbf(factor), size = ilogbf(bits_to_float((uint32_t)bits)) + more;
  if (size >= -40 && size < 55) return 0;
  return (int)within(54 - size, -120 - more, 120 - more);  // a factor is a float too
}

INLINE vec top_digits(vec x) { return (vec)((ivec)x & ievery((INT)0xffff0000)); }
INLINE vec plus_half_a_digit(vec x) { return (vec)((ivec)x + ievery(0x8000)); }

// Two vectors to their place in a tile, in pairs, a number of each; and their parts to the same in those
// behind it, so many bytes `apart`. Weights are cut off, which is quicker. What is left for the last part
// has no more digits than that holds; nor has a number that comes as bfloat16.
INLINE void put_parts(vec x, vec y, char *to, int apart, int parts, int weights) {
  for (int part = 0; part < parts; part++, to += apart) {
    int last = part == parts - 1;
    vec high_x = weights || last ? x : plus_half_a_digit(x), high_y = weights || last ? y : plus_half_a_digit(y);
    __m512i both = _mm512_srli_epi32((__m512i)high_x, 16);  // and y where digits are:
    both = _mm512_ternarylogic_epi32((__m512i)high_y, _mm512_set1_epi32(0xffff0000), both, 0xea);
    memcpy(to, &both, sizeof both);
    if (!last) x -= top_digits(high_x), y -= top_digits(high_y);
  }
}
INLINE void put_pair(vec x, vec y, char *to, int apart, int parts, int weights) {
  if (parts == 1) put_parts(x, y, to, apart, 1, weights);
  else put_parts(x, y, to, apart, PARTS, weights);
}

// Where two rows of lanes go, from lane `at` on.
INLINE char *place_of_pair(REAL *lanes, int j, int at) {
  return (char *)lanes + j / DEEP * LANE_TILE + at / W * TILE + j % DEEP / 2 * (int)sizeof(vec);
}

INLINE vec load_some(const REAL *from, int n) {
  return (vec)_mm512_maskz_loadu_ps(n <= 0 ? 0 : (1u << (n < W ? n : W)) - 1, from);
}

// Rows i0:i0 + n of an array, in parts: (groups, tiles deep, parts, GROUP, 32), zeros behind the last.
static vec split_rows(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int depth, REAL factor, int parts, REAL *to) {
  REAL room[depth + 1];
  vec seen = {0};
  int64_t deep = tiles_deep(depth), whole = groups_of(n) * GROUP;
  for (int i = 0; i < whole; i++) {
    const REAL *row = i < n ? row_of(x, b, h, i0 + i, depth, room) : room;
    char *at = (char *)to + i / GROUP * deep * ROW_TILE + i % GROUP * DEEP * 2;
    for (int d = 0; d < depth; d += DEEP, at += ROW_TILE) {
      int left = i < n ? depth - d : 0;
      vec one = left < DEEP ? load_some(row + d, left) : load(row + d);
      vec two = left < DEEP ? load_some(row + d + W, left - W) : load(row + d + W);
      look(one, &seen), look(two, &seen);
      put_pair(one * every(factor), two * every(factor), at, TILE, parts, 0);
    }
  }
  return seen;
}

static vec pack_rows(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int depth, REAL factor, int parts, Packed *to) {
  vec seen = split_rows(x, b, h, i0, n, depth, factor, parts, to->at);
  to->up = lift_of(largest_bits(seen), factor);
  if (to->up) split_rows(x, b, h, i0, n, depth, ldexpf(factor, to->up), parts, to->at);
  return seen;
}

// The same rows as columns: (groups of columns, tiles deep, parts, GROUP, 32), zeros in those that are
// `left_out`, if that is given.
static vec split_columns(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int width, REAL factor, int parts,
    const uint8_t *left_out, REAL *to) {
  REAL room[DEEP][width + 1], nothing[width + 1], end[DEEP][W];
  memset(nothing, 0, sizeof nothing);
  memset(end, 0, sizeof end);
  vec seen = {0};
  int64_t deep = tiles_deep(n);
  for (int i = 0; i < n; i += DEEP) {
    const REAL *rows[DEEP];
    for (int r = 0; r < DEEP; r++) {
      int there = i + r < n && !(left_out && left_out[i + r]);
      rows[r % 2 * W + r / 2] = there ? row_of(x, b, h, i0 + i + r, width, room[r]) : nothing;
    }
    for (int d = 0; d < width; d += W) {
      REAL turned[2][W][W];
      int at = d;
      if (width - d < W) {
        for (int r = 0; r < DEEP; r++) {
          memcpy(end[r], rows[r] + d, sizeof(REAL) * (width - d));
          rows[r] = end[r];
        }
        at = 0;
      }
      transpose(rows, at, turned[0][0], W);
      transpose(rows + W, at, turned[1][0], W);
      char *place = (char *)to + (d / W * deep + i / DEEP) * ROW_TILE;
      for (int r = 0; r < W; r++, place += DEEP * 2) {
        vec one = load(turned[0][r]), two = load(turned[1][r]);
        look(one, &seen), look(two, &seen);
        put_pair(one * every(factor), two * every(factor), place, TILE, parts, 0);
      }
    }
  }
  return seen;
}

static vec pack_columns(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int width, REAL factor, int parts,
    const uint8_t *left_out, Packed *to) {
  vec seen = split_columns(x, b, h, i0, n, width, factor, parts, left_out, to->at);
  to->up = lift_of(largest_bits(seen), factor);
  if (to->up) split_columns(x, b, h, i0, n, width, ldexpf(factor, to->up), parts, left_out, to->at);
  return seen;
}

INLINE void split_lanes(
    const REAL *from, int depth, int n_vecs, REAL factor, int parts, int weights, REAL *to) {
  char *tile = (char *)to;
  for (int d = 0; d < depth; d += DEEP, tile += LANE_TILE)
    for (int at = 0; at < n_vecs; at++) {
      char *place = tile + at * TILE;
      const REAL *here = from + d * LANES + at * W;
      int next = weights ? 2 : 1, other = weights ? 1 : W;  // which number of a row is a pair's, and its other
      for (int r = 0; r < W; r++, place += sizeof(vec)) {
        int i = r * next, left = depth - d;
        vec one = i < left ? load(here + i * LANES) : (vec){0};
        vec two = i + other < left ? load(here + (i + other) * LANES) : (vec){0};
        put_pair(one * every(factor), two * every(factor), place, VECS * TILE, parts, weights);
      }
    }
}

// Lanes (depth, LANES) as they are multiplied: in parts, (tiles deep, parts, VECS, pairs, W), with zeros
// behind the last.
static __attribute__((noinline)) void ready(const REAL *lanes, int depth, int n_vecs, int parts, REAL *to) {
  split_lanes(lanes, depth, n_vecs, 1, parts, 0, to);
}

// The same of weights.
static __attribute__((noinline)) Packed ready_weights(REAL *lanes, int depth, int n_vecs, REAL *to) {
  split_lanes(lanes, depth, n_vecs, 1, PARTS, 1, to);
  return (Packed){to, 0};
}

// The same of gradients of scores, which may have any size. Spoiled rows have no say in it.
static __attribute__((noinline)) Packed ready_gradients(REAL *lanes, int depth, int n_vecs, REAL *to) {
  const __m512i infinite = _mm512_set1_epi32((int)0xff000000);  // without its sign
  __m512i seen = _mm512_setzero_si512();
  for (int i = 0; i < depth; i++)
    for (int at = 0; at < n_vecs * W; at += W) {
      __m512i size = _mm512_slli_epi32((__m512i)load(lanes + i * LANES + at), 1);
      seen = _mm512_mask_max_epu32(seen, _mm512_cmplt_epu32_mask(size, infinite), seen, size);
    }
  int up = lift_of(largest_bits((vec)seen), 1);
  if (up) split_lanes(lanes, depth, n_vecs, ldexpf(1, up), PARTS, 1, to);
  else split_lanes(lanes, depth, n_vecs, 1, PARTS, 1, to);
  return (Packed){to, up};
}

// What is multiplied one after the other, for each step of depth: which of the rows' tiles and which of the
// lanes', the parts of a step being side by side. The first part of both comes behind them all. Where
// rows and lanes have changed places, `crossed`, a sum has the same order, and the same bits. It is a list,
// since few branches are foretold wrongly then beside the steps of a softmax.
enum { ROWS = 1, OTHER_LANES = 2, BOTH = 3 };  // what is loaded for a step: the rest is there already
typedef struct {
  uint8_t rows, lanes, loaded;
} Step;
#define STRAIGHT_AT(k) \
  {k + 2, k, BOTH}, {k + 1, k, ROWS}, {k + 1, k + 1, OTHER_LANES}, {k, k + 1, ROWS}, {k, k + 2, OTHER_LANES},
#define CROSSED_AT(k) \
  {k, k + 2, BOTH}, {k, k + 1, OTHER_LANES}, {k + 1, k + 1, ROWS}, {k + 1, k, OTHER_LANES}, {k + 2, k, ROWS},
#define ONE_PART_AT(k) {k, k + 2, BOTH}, {k, k + 1, OTHER_LANES},
#define LAST_AT(k) {k, k, BOTH},
#define EACH_4(X, k) X(k) X(k + 3) X(k + 6) X(k + 9)
#define EACH_16(X, k) EACH_4(X, k) EACH_4(X, k + 12) EACH_4(X, k + 24) EACH_4(X, k + 36)
#define EACH_STEP(X) {EACH_16(X, 0) EACH_16(X, 48)}
static const Step STRAIGHT[] = EACH_STEP(STRAIGHT_AT), CROSSED[] = EACH_STEP(CROSSED_AT);
static const Step OF_ONE_PART[] = EACH_STEP(ONE_PART_AT), LAST[] = EACH_STEP(LAST_AT);
_Static_assert(sizeof LAST / sizeof *LAST * DEEP >= 1024, "a step for each depth: WIDEST of native.py");

// Products that are under way: n rows, (n, depth), by lanes (depth, LANES), both in parts. Between the first
// and the last of a group its sums are in tiles, which are 0 where none are under way.
typedef struct {
  const char *rows, *lanes;
  int64_t below, deep;     // bytes from a group of rows to the next; steps of depth
  const Step *all, *step, *end;
  int n_all, n, n_vecs;
  REAL *to;                // sums (n in whole groups, LANES)
  REAL *sums;              // the first of them, so many rows, times 2^up
  int n_sums, up;
} Products;

// Steps before the last, n_all of them for each of depth.
INLINE void begin_steps(Products *p) {
  p->step = p->n_all ? p->all : LAST;
  p->end = p->step + p->deep * (p->n_all ? p->n_all : 1);
}

INLINE void start_tiles(
    Products *p, Packed rows, int64_t below, Packed lanes, REAL *sums, int n, int depth, int n_vecs,
    const Step *all, int n_all) {
  *p = (Products){.rows = (const char *)rows.at, .lanes = (const char *)lanes.at, .below = below,
                  .deep = tiles_deep(depth), .all = all, .n_all = n_all, .n = n, .n_vecs = n_vecs,
                  .to = sums, .sums = sums, .n_sums = n, .up = rows.up + lanes.up};
  begin_steps(p);
}

INLINE void start_products(
    Products *p, Packed rows, Packed lanes, REAL *sums, int n, int depth, int n_vecs, int parts,
    int crossed) {
  const Step *all = crossed ? CROSSED : STRAIGHT;
  start_tiles(p, rows, tiles_deep(depth) * ROW_TILE, lanes, sums, n, depth, n_vecs, all, parts > 1 ? 5 : 0);
}

// Behind the last steps of two groups of rows: their sums, and on to the next groups.
INLINE int end_steps(Products *p, int two, int wide) {
  _tile_stored(0, p->to, LANES * sizeof(REAL));
  if (wide) _tile_stored(1, p->to + W, LANES * sizeof(REAL));
  if (two) _tile_stored(2, p->to + GROUP * LANES, LANES * sizeof(REAL));
  if (two && wide) _tile_stored(3, p->to + GROUP * LANES + W, LANES * sizeof(REAL));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  begin_steps(p);
  p->n -= 2 * GROUP;
  p->rows += 2 * p->below;
  p->to += 2 * GROUP * LANES;
  return p->n > 0;
}

// One more pair of parts, of two groups of rows by two vectors of lanes: whether any is left. Tiles 0 to
// 3 are their sums; 4 and 5 rows; 6 and 7 lanes.
INLINE int some_products(Products *p) {
  if (p->n <= 0) return 0;
  int two = p->n > GROUP, wide = p->n_vecs > 1;
  const char *rows = p->rows + p->step->rows * TILE, *lanes = p->lanes + p->step->lanes * (VECS * TILE);
  __asm__ volatile("" : : : "memory");  // what tiles are loaded from is written before, not behind
  if (p->step->loaded & ROWS) {
    _tile_loadd(4, rows, DEEP * 2);
    if (two) _tile_loadd(5, rows + p->below, DEEP * 2);
  }
  if (p->step->loaded & OTHER_LANES) {
    _tile_loadd(6, lanes, sizeof(vec));
    if (wide) _tile_loadd(7, lanes + TILE, sizeof(vec));
  }
  _tile_dpbf16ps(0, 4, 6);
  if (wide) _tile_dpbf16ps(1, 4, 7);
  if (two) _tile_dpbf16ps(2, 5, 6);
  if (two && wide) _tile_dpbf16ps(3, 5, 7);
  if (++p->step < p->end) return 1;
  if (p->end == LAST + p->deep) return end_steps(p, two, wide);
  p->step = LAST;
  p->end = LAST + p->deep;
  return 1;
}

// All that are left, and their sums without the powers of two.
static __attribute__((noinline)) void finish_products(Products *p) {
  while (some_products(p)) {}
  for (int i = 0; i < p->n_sums && p->up; i++)
    for (int at = 0; at < p->n_vecs * W; at += W) {
      REAL *sum = p->sums + i * LANES + at;
      store(sum, (vec)_mm512_scalef_ps(load(sum), every((REAL)-p->up)));
    }
}

static void products(
    Packed rows, Packed lanes, REAL *sums, int n, int depth, int n_vecs, int parts, int crossed) {
  Products p;
  start_products(&p, rows, lanes, sums, n, depth, n_vecs, parts, crossed);
  finish_products(&p);
}

// n columns of `apart` rows, of which the first `depth` count, by lanes (depth, LANES), both in parts:
// new sums (n in whole groups, LANES).
INLINE void start_columns(
    Products *p, Packed columns, int64_t apart, Packed lanes, REAL *sums, int n, int depth, int n_vecs,
    int parts) {
  start_tiles(p, columns, tiles_deep(apart) * ROW_TILE, lanes, sums, n, depth, n_vecs,
              parts > 1 ? STRAIGHT : OF_ONE_PART, parts > 1 ? 5 : 2);
}

// New sums (n in whole groups, LANES) to those before them, after those were multiplied by a factor a
// lane, if given.
static __attribute__((noinline)) void add_sums(
    const REAL *new, REAL *sums, int n, int n_vecs, const REAL *factors) {
  for (int i = 0; i < whole_groups(n); i++)
    for (int at = 0; at < n_vecs * W; at += W) {
      REAL *to = sums + i * LANES + at;
      vec sum = load(new + i * LANES + at);
      store(to, factors ? fma_(load(to), load(factors + at), sum) : load(to) + sum);
    }
}

// Both at once.
static void add_products(
    Packed columns, int64_t apart, Packed lanes, REAL *sums, int n, int depth, int n_vecs, int parts,
    const REAL *factors) {
  REAL new[2 * GROUP * LANES] __attribute__((aligned(64)));
  for (int r = 0; r < n; r += 2 * GROUP, sums += 2 * GROUP * LANES) {
    int few = n - r < 2 * GROUP ? n - r : 2 * GROUP;
    Products p;
    start_columns(&p, columns, apart, lanes, new, few, depth, n_vecs, parts);
    finish_products(&p);
    add_sums(new, sums, few, n_vecs, factors);
    columns.at += columns_size(apart, 2 * GROUP);
  }
}

// Sets the tiles up for a thread, and gives them back: a thread without them is cheaper to switch.
INLINE void begin_tiles(void) {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } set = {.palette = 1};
  for (int i = 0; i < 8; i++) set.bytes[i] = DEEP * 2, set.rows[i] = GROUP;
  _tile_loadconfig(&set);
}
INLINE void end_tiles(void) { _tile_release(); }
