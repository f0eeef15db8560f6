// Kernels for AVX2, FMA, F16C.
#define PENSTOCK_ISA avx2
#define PENSTOCK_SIMD_AVX2
#include "cpu/isa/all_kernels.inl.h"
