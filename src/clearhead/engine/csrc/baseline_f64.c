#define REAL double
#define INT int64_t
#define NAME baseline_f64
#include "target.h"
#include "kernel.c"
