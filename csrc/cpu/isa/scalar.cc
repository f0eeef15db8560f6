// Kernels for any x86-64-v2 or ARMv8 CPU: vectors are arrays of eight lanes, which the compiler may
// map to SSE or NEON.
#define PENSTOCK_ISA scalar
#define PENSTOCK_SIMD_ARRAY 8
#include "cpu/isa/all_kernels.inl.h"
