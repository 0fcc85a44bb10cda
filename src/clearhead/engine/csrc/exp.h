// e^x and tanh x of vectors.
#pragma once
#include <math.h>

#include "vec.h"

#define LOG2_E 1.4426950408889634074

// e^x for x <= 0, or a little above: with a whole n and |r| <= ln 2 / 2, x = n ln 2 + r, and so it
// is 2^n times a polynomial in r. ln 2 is in two parts, of which the first has so few digits that n
// times it is exact. Below LOWEST, where x has to end, all is 0; NaN stays NaN. Relative error
// as far as numbers are normal: 1.0e-7 for float and 1.8e-16 for double, with one rounding to a
// product and its sum 0.8e-7 and 1.4e-16 (tests/test_native.py measures it).
#if defined(IS_FLOAT)
#define LOWEST (-104.0f)
INLINE vec exp_of_rest(vec x, vec *power) {
  vec n = nearest_product(x, (REAL)LOG2_E);
  vec r = fma_(n, every(-6.93145751953125e-1f), x);
  r = fma_(n, every(-1.428606820309417e-6f), r);
  vec p = every(1.381460112e-3f);
  p = fma_(p, r, every(8.368715644e-3f));
  p = fma_(p, r, every(4.166838899e-2f));
  p = fma_(p, r, every(1.666652113e-1f));
  p = fma_(p, r, every(4.999999404e-1f));
  p = fma_(p, r, every(1.0f));
  p = fma_(p, r, every(1.0f));
  *power = n;
  return p;
}
#else
#define LOWEST (-746.0)
INLINE vec exp_of_rest(vec x, vec *power) {
  vec n = nearest_product(x, LOG2_E);
  vec r = fma_(n, every(-6.93147180369123816490e-1), x);
  r = fma_(n, every(-1.90821492927058770002e-10), r);
  vec p = every(1.0 / 6227020800.0);  // 1 / 13!, and so on: Taylor's, whose rest is 4e-18
  p = fma_(p, r, every(1.0 / 479001600.0));
  p = fma_(p, r, every(1.0 / 39916800.0));
  p = fma_(p, r, every(1.0 / 3628800.0));
  p = fma_(p, r, every(1.0 / 362880.0));
  p = fma_(p, r, every(1.0 / 40320.0));
  p = fma_(p, r, every(1.0 / 5040.0));
  p = fma_(p, r, every(1.0 / 720.0));
  p = fma_(p, r, every(1.0 / 120.0));
  p = fma_(p, r, every(1.0 / 24.0));
  p = fma_(p, r, every(1.0 / 6.0));
  p = fma_(p, r, every(0.5));
  p = fma_(p, r, every(1.0));
  p = fma_(p, r, every(1.0));
  *power = n;
  return p;
}
#endif

INLINE vec exp_(vec x) {
  vec n, p = exp_of_rest(x, &n);
  return times_power_of_2(p, n, x, every(LOWEST));
}

// e^x, and e^x x added to a sum; of -infinity 0 and nothing.
#if defined(AVX512) && defined(IS_FLOAT)
INLINE vec exp_and_product(vec x, vec *sum) {
  vec n, p = exp_of_rest(x, &n);
  __mmask16 there = _mm512_cmp_ps_mask(x, every(LOWEST), _CMP_NLE_UQ);
  p = _mm512_maskz_scalef_ps(there, p, n);
  *sum = _mm512_mask3_fmadd_ps(p, x, *sum, there);
  return p;
}
#else
INLINE vec exp_and_product(vec x, vec *sum) {
  x = greatest(every(LOWEST), x);
  vec p = exp_(x);
  *sum = fma_(p, x, *sum);
  return p;
}
#endif

// tanh x: (1 - e^-2x) / (1 + e^-2x), and near 0, where that loses digits, an odd polynomial.
INLINE vec tanh_(vec x) {
#if defined(IS_FLOAT)
  vec size = if_less(x, every(0.0f), -x, x);
  vec e = exp_(greatest(every(LOWEST), size * every(-2.0f)));
  vec far = (every(1.0f) - e) / (every(1.0f) + e), z = x * x;
  vec p = every(-5.70498872745e-3f);  // the coefficients of Cephes' tanhf
  p = fma_(p, z, every(2.06390887954e-2f));
  p = fma_(p, z, every(-5.37397155531e-2f));
  p = fma_(p, z, every(1.33314422036e-1f));
  p = fma_(p, z, every(-3.33332819422e-1f));
  far = if_less(x, every(0.0f), -far, far);
  return if_less(size, every(0.625f), fma_(p * z, x, x), far);
#else
  for (int i = 0; i < W; i++) x[i] = tanh(x[i]);
  return x;
#endif
}
