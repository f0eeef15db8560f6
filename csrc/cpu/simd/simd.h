// The vector type that kernels are written over. The ISA file that includes this header selects one
// of four implementations (see isa.h); implementations with the same kLanes give the same bits,
// except `fma` in the scalar ISA, which rounds twice.
//
// All code is in penstock::cpu::<ISA>::(anonymous), so that code compiled for one instruction set
// can never be linked in place of code for another.
//
//   constexpr int kLanes                     8 (scalar, NEON, AVX2) or 16 (avx512, amx, emulated)
//   struct F32, I32, Mask                    kLanes floats, int32s, booleans
//
//   broadcast(float) -> F32                  broadcast(int32_t) -> I32
//   load(const float*), load(const int32_t*) any alignment
//   load(const float*, n)                    first n lanes, zeros after; touches only n elements
//   store(p, v), store(p, v, n)              all lanes; the first n lanes
//   load_f16(const uint16_t*[, n])           exact; store_f16(uint16_t*, F32[, n]) half to even
//   load_bf16(const uint16_t*[, n])          exact; store_bf16(uint16_t*, F32[, n]) half to even
//   load_i8(const int8_t*) -> I32            load_u8(const uint8_t*) -> I32: kLanes bytes, widened
//   store_i8(int8_t*, I32)                   kLanes bytes; the lanes must be within -128..127
//   store_i16(int16_t*, I32)                 kLanes int16; the lanes must be within -2^15..2^15 - 1
//
//   a + b, a - b, a * b, a / b, -a           F32; +, -, &, |, ^ on I32
//   fma(a, b, c) = a * b + c                 fnma(a, b, c) = c - a * b; rounded once
//   min, max                                 the second operand if either is NaN; max on I32
//   abs, sqrt, round_even                    F32
//   to_int(F32) -> I32                       half to even; to_float(I32) -> F32
//   as_int(F32), as_float(I32)               the same bits
//   shift_left<n>(I32), shift_right<n>(I32)  logical
//
//   less(a, b), less_equal(a, b), equal      F32 -> Mask; a & b, a | b, !m on masks
//   first(n) -> Mask                         the first n lanes (n is clamped to 0..kLanes)
//   select(mask, a, b)                       a if the mask is set, else b; F32 and I32
//   any(mask) -> bool, bits(mask) -> uint32  bit i is lane i
//
//   reduce_add, reduce_max, reduce_min       lane i with lane i + half, halving: a fixed order
//   reduce_add(I32), reduce_max(I32)         the sum wraps
//   reduce_add_each(rows), reduce_max_each   eight F32 at once: lane r < 8 is that of rows[r]
//   prefetch(p)                              into all cache levels
//   prefetch_l2(p)                           into all but the first
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/simd/half.h"

#if defined(PENSTOCK_SIMD_AVX512)
#include "cpu/simd/simd_avx512.h"
#elif defined(PENSTOCK_SIMD_AVX2)
#include "cpu/simd/simd_avx2.h"
#elif defined(PENSTOCK_SIMD_NEON)
#include "cpu/simd/simd_neon.h"
#elif defined(PENSTOCK_SIMD_ARRAY)
#include "cpu/simd/simd_array.h"
#else
#error "include this through an ISA's file: see isa.h"
#endif

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if !defined(PENSTOCK_SIMD_AVX512) && !defined(PENSTOCK_SIMD_AVX2)
template <class Reduce>
PENSTOCK_INLINE F32 each_of(const F32 (&rows)[8], Reduce reduce) {
    float results[kLanes] = {};
    for (int r = 0; r < 8; ++r)
        results[r] = reduce(rows[r]);
    return load(results);
}
PENSTOCK_INLINE F32 reduce_add_each(const F32 (&rows)[8]) {
    return each_of(rows, [](F32 row) { return reduce_add(row); });
}
PENSTOCK_INLINE F32 reduce_max_each(const F32 (&rows)[8]) {
    return each_of(rows, [](F32 row) { return reduce_max(row); });
}
#endif

constexpr int64_t kLineBytes = 64; // cache line

PENSTOCK_INLINE void prefetch(const void* address) {
    __builtin_prefetch(address, 0, 3);
}
PENSTOCK_INLINE void prefetch_l2(const void* address) {
    __builtin_prefetch(address, 0, 2);
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
