// Exact dot products of int8 LoRA factors and int16 activations, a pair per lane: the micro-kernel
// primitives of the kernel `lora` with 8-bit factors. One implementation per instruction set; all
// give the same integers.
//
//   struct Pairs                two int16 in each of kLanes lanes
//   load_i16_pairs(p)           2 * kLanes int16
//   load_i8_pairs(p)            2 * kLanes int8, widened
//   broadcast_pair(p)           p[0] and p[1], int16, in every lane
//   add_pairs(sum, a, b) -> I32 sum + a[0] * b[0] + a[1] * b[1] in each lane; wraps
//   store_i16(p, I32, I32)      2 * kLanes int16; the lanes must be within -32768..32767
#pragma once

#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if defined(PENSTOCK_SIMD_AVX512)

struct Pairs {
    __m512i v;
};

PENSTOCK_INLINE Pairs load_i16_pairs(const int16_t* p) {
    return {_mm512_loadu_si512(p)};
}
PENSTOCK_INLINE Pairs load_i8_pairs(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
PENSTOCK_INLINE Pairs broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
}
PENSTOCK_INLINE I32 add_pairs(I32 sum, Pairs a, Pairs b) {
    return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
}
PENSTOCK_INLINE void store_i16(int16_t* p, I32 a, I32 b) {
    auto* to = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(a.v));
    _mm256_storeu_si256(to + 1, _mm512_cvtepi32_epi16(b.v));
}

#elif defined(PENSTOCK_SIMD_AVX2)

struct Pairs {
    __m256i v;
};

PENSTOCK_INLINE Pairs load_i16_pairs(const int16_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
PENSTOCK_INLINE Pairs load_i8_pairs(const int8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
PENSTOCK_INLINE Pairs broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {_mm256_set1_epi32(pair)};
}
PENSTOCK_INLINE I32 add_pairs(I32 sum, Pairs a, Pairs b) {
    sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v));
    asm("" : "+x"(sum.v)); // else GCC 12 computes all products first and spills registers
    return sum;
}
PENSTOCK_INLINE void store_i16(int16_t* p, I32 a, I32 b) {
    constexpr int kInOrder = 0xd8; // puts the quarters 0, 2, 1, 3 into order
    const __m256i halves = _mm256_packs_epi32(a.v, b.v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(halves, kInOrder));
}

#elif defined(PENSTOCK_SIMD_NEON)

struct Pairs {
    int16x8_t low, high;
};

PENSTOCK_INLINE Pairs load_i16_pairs(const int16_t* p) {
    return {vld1q_s16(p), vld1q_s16(p + kLanes)};
}
PENSTOCK_INLINE Pairs load_i8_pairs(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    return {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
}
PENSTOCK_INLINE Pairs broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    const int16x8_t everywhere = vreinterpretq_s16_s32(vdupq_n_s32(pair));
    return {everywhere, everywhere};
}
PENSTOCK_INLINE int32x4_t pair_products(int16x8_t a, int16x8_t b) {
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
PENSTOCK_INLINE I32 add_pairs(I32 sum, Pairs a, Pairs b) {
    return sum + I32{pair_products(a.low, b.low), pair_products(a.high, b.high)};
}
PENSTOCK_INLINE void store_i16(int16_t* p, I32 a, I32 b) {
    vst1q_s16(p, vcombine_s16(vmovn_s32(a.low), vmovn_s32(a.high)));
    vst1q_s16(p + kLanes, vcombine_s16(vmovn_s32(b.low), vmovn_s32(b.high)));
}

#else

struct Pairs {
    int16_t v[2 * kLanes];
};

PENSTOCK_INLINE Pairs load_i16_pairs(const int16_t* p) {
    Pairs pairs;
    std::memcpy(pairs.v, p, sizeof pairs.v);
    return pairs;
}
PENSTOCK_INLINE Pairs load_i8_pairs(const int8_t* p) {
    Pairs pairs;
    for (int i = 0; i < 2 * kLanes; ++i)
        pairs.v[i] = p[i];
    return pairs;
}
PENSTOCK_INLINE Pairs broadcast_pair(const int16_t* p) {
    Pairs pairs;
    for (int i = 0; i < kLanes; ++i)
        std::memcpy(pairs.v + 2 * i, p, 2 * sizeof *p);
    return pairs;
}
PENSTOCK_INLINE I32 add_pairs(I32 sum, const Pairs& a, const Pairs& b) {
    for (int i = 0; i < kLanes; ++i)
        sum.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
    return sum;
}
PENSTOCK_INLINE void store_i16(int16_t* p, I32 a, I32 b) {
    for (int i = 0; i < kLanes; ++i) {
        p[i] = static_cast<int16_t>(a.v[i]);
        p[kLanes + i] = static_cast<int16_t>(b.v[i]);
    }
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
