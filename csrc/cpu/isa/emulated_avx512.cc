// The avx512 ISA with emulated vectors of 16 lanes. For tests.
#define PENSTOCK_ISA emulated_avx512
#define PENSTOCK_SIMD_ARRAY 16
#include "cpu/isa/all_kernels.inl.h"
