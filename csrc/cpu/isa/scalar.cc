// Kernels for any x86-64-v2 or ARMv8 CPU: vectors of eight lanes in the compiler's extension, which
// are two registers of SSE or NEON.
#define PENSTOCK_ISA scalar
#define PENSTOCK_SIMD_ARRAY 8
#include "cpu/isa/all_kernels.inl.h"
