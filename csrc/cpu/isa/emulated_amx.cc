// The amx ISA with vectors of 16-lane arrays, and tiles of arrays. For tests.
#define PENSTOCK_ISA emulated_amx
#define PENSTOCK_SIMD_ARRAY 16
#define PENSTOCK_BF16_PAIRS
#define PENSTOCK_TILES_ARRAY
#include "cpu/isa/all_kernels.inl.h"
