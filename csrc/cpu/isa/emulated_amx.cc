// The amx ISA with emulated vectors of 16 lanes, and tiles of arrays. For tests.
#define PENSTOCK_ISA emulated_amx
#define PENSTOCK_BASE_ISA emulated_avx512
#define PENSTOCK_SIMD_ARRAY 16
#define PENSTOCK_BF16_PAIRS
#define PENSTOCK_TILES_ARRAY
#include "cpu/isa/product_kernels.inl.h"
