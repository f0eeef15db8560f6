// Kernels for AVX-512 F/BW/DQ/VL and VNNI.
#define PENSTOCK_ISA avx512
#define PENSTOCK_SIMD_AVX512
#include "cpu/isa/all_kernels.inl.h"
