// Kernels for AVX-512 with VNNI, BF16 and AMX tiles.
#define PENSTOCK_ISA amx
#define PENSTOCK_SIMD_AVX512
#define PENSTOCK_BF16_PAIRS
#define PENSTOCK_TILES_AMX
#include "cpu/isa/all_kernels.inl.h"
