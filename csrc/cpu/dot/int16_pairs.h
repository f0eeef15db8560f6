// Dot products of int16 pairs accumulated exactly in int32. Attention over an 8-bit cache and LoRA
// with int8 factors use them on every ISA. On ISAs that pack paired scales, products apply the
// scales of two units to their dots at once. Products of int16 weights do all of their work with
// them.
//
//   constexpr bool kPairedScales           whether this ISA packs paired scales
//   constexpr bool kInt16Products          whether this ISA multiplies int16 weights
//   struct Int16Pairs                      two int16 in each of kLanes lanes
//   load_int16_pairs(p)                    2 * kLanes int16
//   load_int8_pairs(p)                     2 * kLanes int8, widened
//   broadcast_int16_pair(p)                p[0] and p[1] in every lane
//   add_int16_pairs(sum, a, b) -> I32      sum + a[0] * b[0] + a[1] * b[1] in each lane
//
// Only on ISAs that multiply int16 weights:
//
//   store_int16_pairs(p, a)                2 * kLanes int16
//   low_halves(a, b) -> Int16Pairs         the low 16 bits of a[i] and of b[i] in lane i
//
// Only on ISAs that pack paired scales:
//
//   scaled(a, b)                           a * b / 2^15 for each int16, to nearest, half up
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/simd/matrix_tiles.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr bool kPairedScales = kBf16Pairs && !kTiles;
#if defined(PENSTOCK_BF16_PAIRS) || defined(PENSTOCK_SIMD_AVX2)
#define PENSTOCK_INT16_PRODUCTS
constexpr bool kInt16Products = true;
#else
constexpr bool kInt16Products = false;
#endif

PENSTOCK_INLINE int32_t int16_pair_at(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return pair;
}

#if defined(PENSTOCK_SIMD_AVX512)

struct Int16Pairs {
    __m512i v;
};

PENSTOCK_INLINE Int16Pairs load_int16_pairs(const int16_t* p) {
    return {_mm512_loadu_si512(p)};
}
PENSTOCK_INLINE Int16Pairs load_int8_pairs(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
PENSTOCK_INLINE Int16Pairs broadcast_int16_pair(const int16_t* p) {
    return {_mm512_set1_epi32(int16_pair_at(p))};
}
PENSTOCK_INLINE I32 add_int16_pairs(I32 sum, Int16Pairs a, Int16Pairs b) {
    return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
}

#elif defined(PENSTOCK_SIMD_AVX2)

struct Int16Pairs {
    __m256i v;
};

PENSTOCK_INLINE Int16Pairs load_int16_pairs(const int16_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
PENSTOCK_INLINE Int16Pairs load_int8_pairs(const int8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
PENSTOCK_INLINE Int16Pairs broadcast_int16_pair(const int16_t* p) {
    return {_mm256_set1_epi32(int16_pair_at(p))};
}
PENSTOCK_INLINE I32 add_int16_pairs(I32 sum, Int16Pairs a, Int16Pairs b) {
    __m256i total = _mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v));
    // Keeps the compiler from adding the products of several steps before it adds them to the sums,
    // which needs more registers than there are.
    __asm__("" : "+x"(total));
    return {total};
}

#elif defined(PENSTOCK_SIMD_NEON)

struct Int16Pairs {
    int16x8_t low, high; // the pairs of the lower and of the upper four lanes
};

PENSTOCK_INLINE Int16Pairs load_int16_pairs(const int16_t* p) {
    return {vld1q_s16(p), vld1q_s16(p + 8)};
}
PENSTOCK_INLINE Int16Pairs load_int8_pairs(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    return {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
}
PENSTOCK_INLINE Int16Pairs broadcast_int16_pair(const int16_t* p) {
    const int16x8_t pair = vreinterpretq_s16_s32(vdupq_n_s32(int16_pair_at(p)));
    return {pair, pair};
}
PENSTOCK_INLINE int32x4_t add_four_pairs(int32x4_t sum, int16x8_t a, int16x8_t b) {
    const int32x4_t first = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    return vaddq_s32(sum, vpaddq_s32(first, vmull_high_s16(a, b)));
}
PENSTOCK_INLINE I32 add_int16_pairs(I32 sum, Int16Pairs a, Int16Pairs b) {
    return {add_four_pairs(sum.low, a.low, b.low), add_four_pairs(sum.high, a.high, b.high)};
}

#else

struct Int16Pairs {
    I32 v; // the first int16 in the low bits
};

PENSTOCK_INLINE Int16Pairs load_int16_pairs(const int16_t* p) {
    return {{loaded<IntHalf>(p), loaded<IntHalf>(p + 2 * kHalfLanes)}};
}
PENSTOCK_INLINE Int16Pairs load_int8_pairs(const int8_t* p) {
    using Bytes = VectorOf<int8_t, 2 * kHalfLanes>::Type;
    using Wide = VectorOf<int16_t, 2 * kHalfLanes>::Type;
    const auto half = [](const int8_t* from) {
        return bits_as<IntHalf>(__builtin_convertvector(loaded<Bytes>(from), Wide));
    };
    return {{half(p), half(p + 2 * kHalfLanes)}};
}
PENSTOCK_INLINE Int16Pairs broadcast_int16_pair(const int16_t* p) {
    return {broadcast(int16_pair_at(p))};
}

// Returns an int16 of each lane, widened.
PENSTOCK_INLINE I32 first_of(Int16Pairs a) {
    const I32 moved = shift_left<16>(a.v);
    return {moved.low >> 16, moved.high >> 16};
}
PENSTOCK_INLINE I32 second_of(Int16Pairs a) {
    return {a.v.low >> 16, a.v.high >> 16};
}
PENSTOCK_INLINE I32 product(I32 a, I32 b) {
    return {a.low * b.low, a.high * b.high};
}
PENSTOCK_INLINE I32 add_int16_pairs(I32 sum, Int16Pairs a, Int16Pairs b) {
    return sum + product(first_of(a), first_of(b)) + product(second_of(a), second_of(b));
}

#endif

#if defined(PENSTOCK_BF16_PAIRS) && defined(PENSTOCK_SIMD_AVX512)

PENSTOCK_INLINE void store_int16_pairs(int16_t* p, Int16Pairs a) {
    _mm512_storeu_si512(p, a.v);
}
PENSTOCK_INLINE Int16Pairs low_halves(I32 a, I32 b) {
    return {_mm512_mask_blend_epi16(0xaaaaaaaa, a.v, _mm512_slli_epi32(b.v, 16))};
}
PENSTOCK_INLINE Int16Pairs scaled(Int16Pairs a, Int16Pairs b) {
    return {_mm512_mulhrs_epi16(a.v, b.v)};
}

#elif defined(PENSTOCK_SIMD_AVX2)

PENSTOCK_INLINE void store_int16_pairs(int16_t* p, Int16Pairs a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
PENSTOCK_INLINE Int16Pairs low_halves(I32 a, I32 b) {
    return {_mm256_blend_epi16(a.v, _mm256_slli_epi32(b.v, 16), 0xaa)};
}

#elif defined(PENSTOCK_BF16_PAIRS)

PENSTOCK_INLINE void store_int16_pairs(int16_t* p, Int16Pairs a) {
    std::memcpy(p, &a.v, sizeof a.v);
}
PENSTOCK_INLINE Int16Pairs low_halves(I32 a, I32 b) {
    return {(a & broadcast(int32_t{0xffff})) | shift_left<16>(b)};
}
PENSTOCK_INLINE Int16Pairs scaled(Int16Pairs a, Int16Pairs b) {
    const auto rounded = [](I32 x, I32 y) {
        const I32 sum = product(x, y) + broadcast(int32_t{1 << 14});
        return I32{sum.low >> 15, sum.high >> 15};
    };
    return low_halves(rounded(first_of(a), first_of(b)), rounded(second_of(a), second_of(b)));
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
