// Switches an instruction set on for what follows in a file; clang has it switched off again by
// the end of it, in kernel.c. The intrinsics come first: they have instruction sets of their own.
#if defined(AVX512) || defined(AVX2)
#include <immintrin.h>
#endif

#if defined(AMX) && defined(__clang__)
#pragma clang attribute push(__attribute__((target( \
    "amx-tile,amx-bf16,avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#elif defined(AMX)
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#elif defined(BF16) && defined(__clang__)
#pragma clang attribute push(__attribute__((target( \
    "avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#elif defined(BF16)
#pragma GCC target("avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#elif defined(AVX512) && defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#elif defined(AVX512)
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#elif defined(AVX2) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#elif defined(AVX2)
#pragma GCC target("avx2,fma")
#endif
