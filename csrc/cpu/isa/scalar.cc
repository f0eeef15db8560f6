// Any x86-64-v2 CPU: vectors are arrays of eight, for the compiler to map to SSE.
#define PENSTOCK_ISA scalar
#define PENSTOCK_SIMD_ARRAY 8
#include "cpu/isa/all_kernels.inl.h"
