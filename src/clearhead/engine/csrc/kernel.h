// What one build of the kernel, for one instruction set and one kind of number, offers.
#pragma once
#include "call.h"

// Older compilers have no word for tiles.
#if defined(__x86_64__) && defined(__clang__) && __clang_major__ >= 12
#define KNOWS_TILES
#elif defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 11
#define KNOWS_TILES
#endif

typedef struct {
  void (*plan)(Call *, int64_t threads);             // cuts a call into units, and their room
  void (*work)(Call *);                              // does units until none is left, or no time is
  void (*exp)(const void *x, void *y, int64_t n);    // e^x of n numbers: what the tests measure
  int64_t (*multiply_adds)(int64_t steps);           // what the benchmark measures: peak.h
} Kernel;

double now(void);  // seconds on a clock that never goes back
