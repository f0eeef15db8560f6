// Kernels for ARMv8 with the int8 dot products of ARMv8.2 (SDOT).
#define PENSTOCK_ISA neon
#define PENSTOCK_SIMD_NEON
#include "cpu/isa/all_kernels.inl.h"
