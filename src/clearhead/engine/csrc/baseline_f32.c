#define REAL float
#define INT int32_t
#define IS_FLOAT
#define NAME baseline_f32
#include "target.h"
#include "kernel.c"
