// Switches an instruction set on for what follows in a file.
#if defined(AVX512)
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#elif defined(AVX2)
#pragma GCC target("avx2,fma")
#endif
