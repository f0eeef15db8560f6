// ARMv8 with the products of int8 that ARMv8.2 brought (SDOT).
#define PENSTOCK_ISA neon
#define PENSTOCK_SIMD_NEON
#include "cpu/isa/all_kernels.inl.h"
