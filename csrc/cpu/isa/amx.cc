// Kernels for AVX-512 with VNNI, BF16 and AMX tiles.
#define PENSTOCK_ISA amx
#define PENSTOCK_BASE_ISA avx512
#define PENSTOCK_SIMD_AVX512
#define PENSTOCK_BF16_PAIRS
#define PENSTOCK_TILES_AMX
#include "cpu/isa/product_kernels.inl.h"
