// W rows of W numbers, turned: to[d][lane] = from[lane][d].
#pragma once
#include "vec.h"

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
