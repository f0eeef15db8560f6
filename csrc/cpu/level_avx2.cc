// AVX2, FMA, F16C.
#define PENSTOCK_LEVEL avx2
#define PENSTOCK_SIMD_AVX2
#include "cpu/level.inl.h"
