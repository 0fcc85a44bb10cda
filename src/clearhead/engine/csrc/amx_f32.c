#include "kernel.h"
#if defined(KNOWS_TILES)
#define REAL float
#define INT int32_t
#define IS_FLOAT
#define AVX512
#define BF16
#define AMX
#define NAME amx_f32
#include "target.h"
#include "kernel.c"
#endif
