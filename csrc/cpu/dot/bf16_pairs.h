// Dot products of bf16 pairs accumulated in float32: the micro-kernel primitives of dense products
// with bf16 weights, and of attention over a float16 cache, on ISAs with VDPBF16PS.
//
//   constexpr bool kBf16Pairs             whether this ISA has VDPBF16PS; the rest exists only then
//   struct Bf16Pairs                      two bf16 in each of kLanes lanes
//   load_bf16_pairs(p)                    2 * kLanes bf16
//   broadcast_bf16_pair(p)                p[0] and p[1] in every lane
//   add_bf16_pairs(sum, a, b) -> F32      (sum + a[1] * b[1]) + a[0] * b[0] in each lane; products
//                                         are exact, subnormal operands and results count as zero
//   round_bf16(uint16_t*, F32)            kLanes bf16, half to even; subnormals become zero
//   interleaved_bf16(a, b)                a[i] and b[i], rounded likewise, in lane i
//   adjacent_bf16(a, b)                   the lanes of a, then those of b, rounded likewise
//   store_bf16_pairs(p, a)                2 * kLanes bf16
#pragma once

#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if defined(PENSTOCK_BF16_PAIRS) && defined(PENSTOCK_SIMD_AVX512)

constexpr bool kBf16Pairs = true;

struct Bf16Pairs {
    __m512i v;
};

PENSTOCK_INLINE Bf16Pairs load_bf16_pairs(const uint16_t* p) {
    return {_mm512_loadu_si512(p)};
}
PENSTOCK_INLINE Bf16Pairs broadcast_bf16_pair(const uint16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
}
PENSTOCK_INLINE F32 add_bf16_pairs(F32 sum, Bf16Pairs a, Bf16Pairs b) {
    return {
        _mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
PENSTOCK_INLINE void round_bf16(uint16_t* p, F32 a) {
    const __m256bh rounded = _mm512_cvtneps_pbh(a.v);
    std::memcpy(p, &rounded, sizeof rounded);
}
PENSTOCK_INLINE Bf16Pairs adjacent_bf16(F32 a, F32 b) {
    return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v))};
}
PENSTOCK_INLINE Bf16Pairs interleaved_bf16(F32 a, F32 b) {
    // Selects word i of the source as word 2 i, and word 16 + i as word 2 i + 1.
    const __m512i first = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i order = _mm512_or_si512(
        first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(16)), 16));
    return {_mm512_permutexvar_epi16(order, adjacent_bf16(a, b).v)};
}
PENSTOCK_INLINE void store_bf16_pairs(uint16_t* p, Bf16Pairs a) {
    _mm512_storeu_si512(p, a.v);
}

#elif defined(PENSTOCK_BF16_PAIRS)

constexpr bool kBf16Pairs = true;

struct Bf16Pairs {
    I32 v; // the first bf16 in the low bits
};

PENSTOCK_INLINE F32 no_subnormal(F32 x) {
    const F32 zero = as_float(as_int(x) & as_int(broadcast(-0.0f)));
    return select(less(abs(x), broadcast(0x1p-126f)), zero, x);
}
PENSTOCK_INLINE Bf16Pairs load_bf16_pairs(const uint16_t* p) {
    return {{loaded<IntHalf>(p), loaded<IntHalf>(p + 2 * kHalfLanes)}};
}
PENSTOCK_INLINE Bf16Pairs broadcast_bf16_pair(const uint16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {broadcast(pair)};
}
PENSTOCK_INLINE F32 add_bf16_product(F32 sum, I32 a, I32 b) {
    const F32 x = no_subnormal(as_float(a)), y = no_subnormal(as_float(b));
    return no_subnormal(fma(x, y, no_subnormal(sum)));
}
PENSTOCK_INLINE F32 add_bf16_pairs(F32 sum, Bf16Pairs a, Bf16Pairs b) {
    const I32 second = shift_left<16>(broadcast(int32_t{0xffff}));
    sum = add_bf16_product(sum, a.v & second, b.v & second);
    return add_bf16_product(sum, shift_left<16>(a.v), shift_left<16>(b.v));
}
PENSTOCK_INLINE void round_bf16(uint16_t* p, F32 a) {
    store_bf16(p, no_subnormal(a));
}
PENSTOCK_INLINE Bf16Pairs adjacent_bf16(F32 a, F32 b) {
    uint16_t lanes[2 * kLanes];
    round_bf16(lanes, a);
    round_bf16(lanes + kLanes, b);
    return load_bf16_pairs(lanes);
}
PENSTOCK_INLINE Bf16Pairs interleaved_bf16(F32 a, F32 b) {
    return {narrow_bf16(no_subnormal(a)) | shift_left<16>(narrow_bf16(no_subnormal(b)))};
}
PENSTOCK_INLINE void store_bf16_pairs(uint16_t* p, Bf16Pairs a) {
    std::memcpy(p, &a.v, sizeof a.v);
}

#else

constexpr bool kBf16Pairs = false;

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
