// Rows turned into lanes, and lanes into rows.
#pragma once
#include "pack.h"

// W rows of W numbers, from number `at` on: to[d][lane] = from[lane][at + d].
#if defined(AVX512) && defined(IS_FLOAT)
// In four steps of pairs, as a sorting network has them: numbers, couples, fours, eights.
INLINE void transpose(const REAL *const from[W], int at, REAL *to, int64_t step) {
  __m512 r[W], t[W];
  for (int i = 0; i < W; i++) r[i] = _mm512_loadu_ps(from[i] + at);
  for (int i = 0; i < W; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < W; i += 4)
    for (int j = 0; j < 2; j++) {
      __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  for (int i = 0; i < W; i += 8)
    for (int j = 0; j < 4; j++) {
      t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  for (int j = 0; j < 8; j++) {
    _mm512_storeu_ps(to + j * step, _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88));
    _mm512_storeu_ps(to + (j + 8) * step, _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd));
  }
}
#else
INLINE void transpose(const REAL *const from[W], int at, REAL *to, int64_t step) {
  for (int lane = 0; lane < W; lane++)
    for (int d = 0; d < W; d++) to[d * step + lane] = from[lane][at + d];
}
#endif

// W rows of `width` numbers, times a factor, into lanes: to (width, LANES), of which W are written.
static void turn_rows(const REAL *const rows[W], int width, REAL factor, REAL *to) {
  int d = 0;
  for (; d + W <= width; d += W) transpose(rows, d, to + d * LANES, LANES);
  for (; d < width; d++)
    for (int i = 0; i < W; i++) to[d * LANES + i] = rows[i][d];
  for (d = 0; d < width && factor != 1; d++) store(to + d * LANES, load(to + d * LANES) * every(factor));
}

// n numbers, at most W, times a factor, to place `at` of an array, as its dtype has them.
INLINE void put(void *to, int64_t dtype, int64_t at, REAL *from, REAL factor, int n) {
  vec row = load(from) * every(factor);
  if (n == W && dtype == (SINGLE ? FLOAT32 : FLOAT64)) {
    store((REAL *)to + at, row);
    return;
  }
  store(from, row);
  for (int d = 0; d < n; d++) switch (dtype) {
      case FLOAT32: ((float *)to)[at + d] = (float)from[d]; break;
      case FLOAT64: ((double *)to)[at + d] = (double)from[d]; break;
      case FLOAT16: ((uint16_t *)to)[at + d] = to_half(from[d]); break;
      default: ((uint16_t *)to)[at + d] = to_brain(from[d]);
    }
}

// Lanes, each times its factor, into rows: of from (width, LANES) the first n lanes, to the given
// rows of `width` numbers each.
static void put_lanes(
    const REAL *from, int width, int n, const REAL *factors, void *to, int64_t dtype,
    const int64_t *rows) {
  for (int at = 0; at < n; at += W)
    for (int d = 0; d < width; d += W) {
      REAL turned[W][W];
      const REAL *columns[W];
      int few = width - d < W ? width - d : W;
      for (int i = 0; i < W; i++) columns[i] = from + (d + (i < few ? i : 0)) * LANES + at;
      transpose(columns, 0, turned[0], W);
      for (int i = 0; i < W && at + i < n; i++)
        put(to, dtype, rows[at + i] * width + d, turned[i], factors[at + i], few);
    }
}
