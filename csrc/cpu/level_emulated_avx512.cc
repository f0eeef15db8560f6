// The avx512 level over arrays of sixteen. For tests.
#define PENSTOCK_LEVEL emulated_avx512
#define PENSTOCK_SIMD_ARRAY 16
#include "cpu/level.inl.h"
