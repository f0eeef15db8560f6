// ARMv8 with the products of int8 that ARMv8.2 brought (SDOT).
#define PENSTOCK_LEVEL neon
#define PENSTOCK_SIMD_NEON
#include "cpu/level.inl.h"
