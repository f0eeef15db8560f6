// AVX-512 F/BW/DQ/VL and VNNI.
#define PENSTOCK_LEVEL avx512
#define PENSTOCK_SIMD_AVX512
#include "cpu/level.inl.h"
