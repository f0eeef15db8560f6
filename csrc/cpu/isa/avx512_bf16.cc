// Kernels for AVX-512 with BF16: the products of bf16 weights, attention over a float16 cache, the
// products of integers and the quantization of rows. Products of integers use paired scales, and
// another loop order on AMD processors of this ISA.
#define PENSTOCK_ISA avx512_bf16
#define PENSTOCK_BASE_ISA avx512
#define PENSTOCK_SIMD_AVX512
#define PENSTOCK_BF16_PAIRS
#include "cpu/isa/product_kernels.inl.h"
