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

// Adds 0 times each of n numbers to `zero`, which is NaN after one that is not finite.
INLINE void add_zeros(const REAL *x, int n, vec *zero) {
  int d = 0;
  for (; d + W <= n; d += W) *zero = fma_(load(x + d), every(0), *zero);
  for (; d < n; d++) *zero += every(x[d] * 0);
}

INLINE int is_nan(vec x) {
  REAL sum = 0;
  for (int i = 0; i < W; i++) sum += x[i];
  return sum != sum;
}

// An array of queries or keys as it is packed for scores: two of bfloat16 as one number, if they are
// multiplied in pairs.
INLINE Array packed(const Call *c, const Array *x) {
  Array as = *x;
  if (c->pairs) as.dtype = TWO_OF_BFLOAT16;
  return as;
}

// Rows i0:i0 + n of an array, (groups, GROUP, width), with zeros behind the last. NaN in what is
// returned if any is not finite.
static vec pack_rows(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int width, REAL *to) {
  vec zero = {0};
  for (int i = 0; i < n; i++, to += width) {
    const REAL *row = row_of(x, b, h, i0 + i, width, to);
    if (row != to) memcpy(to, row, sizeof(REAL) * width);
    add_zeros(to, width, &zero);
  }
  memset(to, 0, sizeof(REAL) * ((GROUP - n % GROUP) % GROUP) * width);
  return zero;
}

// Keys j0:j0 + n for scores, like pack_rows.
static vec pack_key_rows(const Call *c, int64_t b, int64_t g, int64_t j0, int n, REAL *to) {
  Array k = packed(c, &c->k);
  vec zero = pack_rows(&k, b, g, j0, n, c->depth, to);
  if (c->pairs)  // a float is finite if its upper half is: the lower halves are looked at alone
    for (int d = 0; d < n * c->depth; d += W) {
      int few = n * (int)c->depth - d < W ? n * (int)c->depth - d : W;
      INT low[W] = {0};
      memcpy(low, to + d, few * sizeof(REAL));
      zero = fma_((vec)(iload(low) << 16), every(0), zero);
    }
  return zero;
}

// The same rows as columns: (groups of columns, n, GROUP), the columns of a group side by side.
static vec pack_columns(
    const Array *x, int64_t b, int64_t h, int64_t i0, int n, int width, REAL *to) {
  REAL room[width + 1];
  vec zero = {0};
  int whole = width / GROUP * GROUP;
  for (int i = 0; i < n; i++, to += GROUP) {
    const REAL *row = row_of(x, b, h, i0 + i, width, room);
    add_zeros(row, width, &zero);
    for (int d = 0; d < whole; d += GROUP)
      memcpy(to + (size_t)d * n, row + d, sizeof(REAL) * GROUP);
    for (int r = 0; r < GROUP && whole < width; r++)
      to[(size_t)whole * n + r] = whole + r < width ? row[whole + r] : 0;
  }
  return zero;
}
