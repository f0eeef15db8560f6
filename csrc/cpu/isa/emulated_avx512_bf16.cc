// The avx512_bf16 ISA with emulated vectors of 16 lanes. For tests.
#define PENSTOCK_ISA emulated_avx512_bf16
#define PENSTOCK_BASE_ISA emulated_avx512
#define PENSTOCK_SIMD_ARRAY 16
#define PENSTOCK_BF16_PAIRS
#include "cpu/isa/product_kernels.inl.h"
