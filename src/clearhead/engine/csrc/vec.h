// Vectors of numbers, W to a vector: the one file that knows an instruction set.
//
// A file that includes this says first what it is built for: REAL, float or double, and INT, the
// integer of the same width; and AVX512, AVX2, or neither, which is what every machine has.
// Sums, differences and products are the compiler's own (+ - *); the rest is here.
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(AVX512) || defined(AVX2)
#include <immintrin.h>
#endif

#if defined(__SSE2__) || defined(__aarch64__)
#define REGISTER "x"
#else
#define REGISTER "m"
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(AVX512) && defined(IS_FLOAT) && defined(BF16) && !defined(AMX)
#define PAIRS
#endif

#if defined(AMX)
enum { BYTES = 64, GROUP = 16, VECS = 2 };  // 2 groups x 2 vectors of sums: 4 of 8 tiles
#elif defined(AVX512)
enum { BYTES = 64, GROUP = 8, VECS = 3 };  // 8 x 3 sums, 3 factors and 1 more: 28 of 32 registers
#elif defined(AVX2)
enum { BYTES = 32, GROUP = 6, VECS = 2 };  // 6 x 2 sums, 2 factors and 1 more: 15 of 16
#elif defined(__aarch64__)
enum { BYTES = 16, GROUP = 8, VECS = 3 };  // 32 registers too
#else
enum { BYTES = 16, GROUP = 6, VECS = 2 };
#endif

enum {
  W = BYTES / sizeof(REAL),
  LANES = VECS * W,  // the queries, or the keys, that are worked on side by side
#if defined(AMX)
  SPLIT = 1,         // numbers are multiplied in parts: amx.h
  STEP = 2 * GROUP,  // products begin at multiples of so many rows
#else
  SPLIT = 0,
  STEP = GROUP,
#endif
  SINGLE = sizeof(REAL) == 4,
};

#define FINITE_MIN (SINGLE ? (REAL)-3.402823466e38 : (REAL)-1.7976931348623157e308)  // but for -inf

#if defined(AVX512) || defined(__aarch64__)
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#else
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#endif

typedef REAL vec __attribute__((vector_size(BYTES)));
typedef INT ivec __attribute__((vector_size(BYTES)));
typedef REAL loose __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef INT iloose __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

INLINE vec load(const REAL *p) { return *(const loose *)p; }
INLINE ivec iload(const INT *p) { return *(const iloose *)p; }
INLINE void store(REAL *p, vec x) { *(loose *)p = x; }
INLINE vec every(REAL x) { return x - (vec){0}; }
INLINE ivec ievery(INT x) { return x - (ivec){0}; }

// greatest(a, b) is b where either is NaN. if_less: x where a < b, y elsewhere, NaN among it; add_if_less:
// sum + x there, else sum.
// times_power_of_2: a 2^n, but 0 where x has come to an end: a machine that is asked for a number below
// the smallest takes a hundred times as long for it, and hidden scores ask for nothing else.

#if defined(AVX512) && defined(IS_FLOAT)
INLINE vec fma_(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vec greatest(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec nearest(vec a) { return _mm512_roundscale_ps(a, 8); }
INLINE vec times_power_of_2(vec a, vec n, vec x, vec end) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, end, _CMP_NLE_UQ), a, n);
}
INLINE vec if_less(vec a, vec b, vec x, vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
INLINE vec add_if_less(vec a, vec b, vec sum, vec x) {
  return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), sum, x);
}
INLINE vec if_iless(ivec a, ivec b, vec x, vec y) {
  return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b), y, x);
}
INLINE int any_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
#if defined(PAIRS)
// c + a0 b0 + a1 b1, where each number of a and b is two of bfloat16: twice the products at once,
// each exact, summed in float.
INLINE vec add_pairs(vec a, vec b, vec c) {
  return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
#endif

#elif defined(AVX512)
INLINE vec fma_(vec a, vec b, vec c) { return _mm512_fmadd_pd(a, b, c); }
INLINE vec greatest(vec a, vec b) { return _mm512_max_pd(a, b); }
INLINE vec nearest(vec a) { return _mm512_roundscale_pd(a, 8); }
INLINE vec times_power_of_2(vec a, vec n, vec x, vec end) {
  return _mm512_maskz_scalef_pd(_mm512_cmp_pd_mask(x, end, _CMP_NLE_UQ), a, n);
}
INLINE vec if_less(vec a, vec b, vec x, vec y) {
  return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), y, x);
}
INLINE vec add_if_less(vec a, vec b, vec sum, vec x) {
  return _mm512_mask_add_pd(sum, _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), sum, x);
}
INLINE vec if_iless(ivec a, ivec b, vec x, vec y) {
  return _mm512_mask_blend_pd(_mm512_cmplt_epi64_mask((__m512i)a, (__m512i)b), y, x);
}
INLINE int any_less(vec a, vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ) != 0; }

#else
INLINE vec pick(ivec where, vec x, vec y) { return (vec)((where & (ivec)x) | (~where & (ivec)y)); }
INLINE vec if_less(vec a, vec b, vec x, vec y) { return pick((ivec)(a < b), x, y); }
INLINE vec add_if_less(vec a, vec b, vec sum, vec x) { return sum + if_less(a, b, x, (vec){0}); }
INLINE vec if_iless(ivec a, ivec b, vec x, vec y) { return pick((ivec)(a < b), x, y); }
INLINE int any_less(vec a, vec b) {
  ivec less = (ivec)(a < b);
  INT any = 0;
  for (int i = 0; i < W; i++) any |= less[i];
  return any != 0;
}
// By the addition of 3 * 2^(digits - 2), in which no digit is left for what is not whole.
INLINE vec nearest(vec a) {
  const REAL big = SINGLE ? (REAL)12582912.0 : (REAL)6755399441055744.0;
  vec sum = a + every(big);
  __asm__("" : "+" REGISTER(sum));  // or a compiler that is told to be fast takes it away again
  return sum - every(big);
}
// In two steps, since half of n is never too small for an exponent.
INLINE vec times_power_of_2(vec a, vec n, vec x, vec end) {
  const int digits = SINGLE ? 23 : 52, zero = SINGLE ? 127 : 1023;
  ivec ended = (ivec)(x <= end);
  n = (vec)(~ended & (ivec)n);
  ivec whole = __builtin_convertvector(n, ivec), half = whole >> 1;
  vec first = (vec)((half + zero) << digits), second = (vec)((whole - half + zero) << digits);
  return (vec)(~ended & (ivec)(a * first * second));
}
#if defined(AVX2) && defined(IS_FLOAT)
INLINE vec fma_(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec greatest(vec a, vec b) { return _mm256_max_ps(a, b); }
#elif defined(AVX2)
INLINE vec fma_(vec a, vec b, vec c) { return _mm256_fmadd_pd(a, b, c); }
INLINE vec greatest(vec a, vec b) { return _mm256_max_pd(a, b); }
#else
INLINE vec fma_(vec a, vec b, vec c) { return a * b + c; }
INLINE vec greatest(vec a, vec b) { return pick((ivec)(a > b), a, b); }
#endif
#endif

// The whole number nearest to x times a factor, a small one: by the addition of a number so large that
// no digit is left for what is not whole.
INLINE vec nearest_product(vec x, REAL factor) {
  const REAL big = SINGLE ? (REAL)12582912.0 : (REAL)6755399441055744.0;
  vec sum = fma_(x, every(factor), every(big));
  __asm__("" : "+" REGISTER(sum));  // or a compiler that is told to be fast takes it away again
  return sum - every(big);
}
