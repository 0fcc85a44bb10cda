#if defined(__x86_64__)
#define REAL double
#define INT int64_t
#define AVX512
#define NAME avx512_f64
#include "target.h"
#include "kernel.c"
#endif
