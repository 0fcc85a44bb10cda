// Multiply-adds that wait for no memory and not for each other: no kernel has more of them a second.
#pragma once
#include "vec.h"

#define START(r) vec a##r = every((REAL)(r)), b##r = every((REAL)(r) + (REAL)0.5);
#define ONE_MORE(r) { a##r = fma_(a##r, half, one); b##r = fma_(b##r, half, one); }
#define OF_STEP(r) +2
#define COLLECT(r) sum += a##r + b##r;

// So many steps; the floating-point operations that they were. Each sum comes to 2 and stays there.
static int64_t multiply_adds(int64_t steps) {
  const vec half = every((REAL)0.5), one = every(1);
  vec sum = {0};
  EACH_ROW(START)
  for (int64_t n = 0; n < steps; n++) { EACH_ROW(ONE_MORE) }
  EACH_ROW(COLLECT)
  __asm__ volatile("" : : REGISTER(sum));  // or there would be nobody to do it for
  return 2 * (0 EACH_ROW(OF_STEP)) * W * steps;
}
