// What is read of the caller's arrays, through their strides and dtypes, into rows of REAL.
#pragma once
#include "call.h"
#include "vec.h"

INLINE float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
INLINE uint32_t float_to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
INLINE float from_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
}
INLINE uint16_t to_half(float x) {  // to the nearest, ties to even
  uint32_t bits = float_to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;
  if (rest >= 0x477ff000) return sign | 0x7c00;  // 65520 and above
  if (rest < 0x38800000) return sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000);
  return sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}
INLINE uint16_t to_brain(float x) {
  uint32_t bits = float_to_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

INLINE REAL number_at(const char *at, int64_t dtype) {
  switch (dtype) {
    case FLOAT32: return (REAL) * (const float *)at;
    case FLOAT64: return (REAL) * (const double *)at;
    case FLOAT16: return (REAL)from_half(*(const uint16_t *)at);
    default: return (REAL)bits_to_float((uint32_t) * (const uint16_t *)at << 16);
  }
}

// An array of numbers as they are multiplied: each times 2^up, which is 1 but where numbers are split and
// are so large or so small that their parts, or sums of products, come to an end: amx.h.
typedef struct {
  REAL *at;
  int up;
} Packed;

INLINE int whole_groups(int n) { return (n + GROUP - 1) / GROUP * GROUP; }

INLINE const char *at(const Array *x, int64_t b, int64_t h, int64_t i) {
  return x->data + b * x->strides[0] + h * x->strides[1] + i * x->strides[2];
}

// The n numbers of a row: where they lie if they are REAL side by side, else copied into `room`.
static const REAL *row_of(const Array *x, int64_t b, int64_t h, int64_t i, int n, REAL *room) {
  const char *from = at(x, b, h, i);
  int64_t step = x->strides[3];
#if defined(PAIRS)
  if (x->dtype == TWO_OF_BFLOAT16) {
    if (step == 2 && (uintptr_t)from % sizeof(REAL) == 0) return (const REAL *)from;
    for (int d = 0; d < n; d++) {
      memcpy((char *)(room + d), from + 2 * d * step, 2);
      memcpy((char *)(room + d) + 2, from + (2 * d + 1) * step, 2);
    }
    return room;
  }
#endif
  if (x->dtype == (SINGLE ? FLOAT32 : FLOAT64) && step == sizeof(REAL)) return (const REAL *)from;
#define COPY(kind, size)                                                          \
  case kind:                                                                      \
    if (step == size)                                                             \
      for (int d = 0; d < n; d++) room[d] = number_at(from + d * size, kind);     \
    else                                                                          \
      for (int d = 0; d < n; d++) room[d] = number_at(from + d * step, kind);     \
    break;
  switch (x->dtype) { COPY(FLOAT32, 4) COPY(FLOAT64, 8) COPY(FLOAT16, 2) COPY(BFLOAT16, 2) }
#undef COPY
  return room;
}

// What was seen of numbers that are packed: whether each of them is finite; and, where numbers are
// split, the largest, by its bits.
#if defined(AMX)
INLINE void look(vec x, vec *seen) {
  *seen = (vec)_mm512_max_epu32((__m512i)*seen, _mm512_slli_epi32((__m512i)x, 1));
}
INLINE void look_at(const REAL *x, int n, vec *seen) {
  for (int d = 0; d < n; d += W) {
    __mmask16 some = n - d < W ? (1u << (n - d)) - 1 : 0xffff;
    look((vec)_mm512_maskz_loadu_ps(some, x + d), seen);
  }
}
INLINE int64_t largest_bits(vec seen) { return _mm512_reduce_max_epu32((__m512i)seen) >> 1; }
INLINE int any_bad(vec seen) { return largest_bits(seen) >= 0x7f800000; }
#else
// NaN after one that is not finite, by adding 0 times each.
INLINE void look_at(const REAL *x, int n, vec *seen) {
  int d = 0;
  for (; d + W <= n; d += W) *seen = fma_(load(x + d), every(0), *seen);
  for (; d < n; d++) *seen += every(x[d] * 0);
}
INLINE int64_t largest_bits(vec seen) {
  (void)seen;
  return 0;
}
INLINE int any_bad(vec seen) {
  REAL sum = 0;
  for (int i = 0; i < W; i++) sum += seen[i];
  return sum != sum;
}
#endif

// An array of queries or keys as it is packed for scores: two of bfloat16 as one number, where those
// are multiplied.
INLINE Array packed(const Call *c, const Array *x) {
  Array as = *x;
  if (c->pairs && !SPLIT) as.dtype = TWO_OF_BFLOAT16;
  return as;
}
