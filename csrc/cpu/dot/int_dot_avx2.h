// Integer dot products in AVX2. Included by int_dot.h, which documents every function.
//
// VPMADDUBSW multiplies u8 by s8 and adds neighbours into int16 with saturation: it is exact only
// while the sum of a pair fits an int16. Without AVX-VNNI, the number of such sums that fit an
// int16 decides the scheme for each bit width.
#pragma once

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct Words {
    __m256i v;
};

PENSTOCK_INLINE Words load_words(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
template <class Value> // int8_t or int16_t
PENSTOCK_INLINE Words broadcast_word(const Value* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return {_mm256_set1_epi32(word)};
}
PENSTOCK_INLINE Words low_nibbles(Words w) {
    return {_mm256_and_si256(w.v, _mm256_set1_epi8(15))};
}
PENSTOCK_INLINE Words high_nibbles(Words w) {
    return {_mm256_and_si256(_mm256_srli_epi16(w.v, 4), _mm256_set1_epi8(15))};
}
PENSTOCK_INLINE Words table_lookup(const uint8_t (&table)[16], Words w) {
    const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), w.v)};
}
template <int i>
PENSTOCK_INLINE Words two_bits(Words w) {
    const __m256i moved = i == 0   ? _mm256_slli_epi16(w.v, 4)
                          : i == 1 ? _mm256_slli_epi16(w.v, 2)
                          : i == 2 ? w.v
                                   : _mm256_srli_epi16(w.v, 2);
    return {_mm256_and_si256(moved, _mm256_set1_epi8(0x30))};
}
PENSTOCK_INLINE Words join(Words a, Words b) {
    return {_mm256_or_si256(a.v, b.v)};
}
PENSTOCK_INLINE I32 sums_times(const int16_t* p, int32_t first, int32_t second) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    const int32_t factors = (second << 16) | (first & 0xffff);
    return {_mm256_madd_epi16(_mm256_set1_epi32(pair), _mm256_set1_epi32(factors))};
}
PENSTOCK_INLINE __m256i widen_pairs(__m256i sums) {
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

// Keeps the compiler from reassociating a chain of integer sums into a tree, whose leaves the
// compiler would spill.
PENSTOCK_INLINE __m256i in_order(__m256i sum) {
    asm("" : "+x"(sum));
    return sum;
}

#if defined(PENSTOCK_AVX_VNNI)

PENSTOCK_INLINE I32 add_products(I32 sum, Words w, Words x) {
    return {_mm256_dpbusd_avx_epi32(sum.v, w.v, x.v)};
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA

#include "cpu/dot/exact_dot.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr bool kDotsAlike = true;

template <int kBits>
using Dot = ExactDot;

#else

constexpr bool kDotsAlike = false;

template <int kBits>
struct Dot;

// 8 steps x 2 x 15 x 127 = 30480 fits an int16, so that int16 accumulates a whole group.
template <>
struct Dot<4> {
    static constexpr int kVectors = 2;
    static constexpr int kStepWords = 1;
    static constexpr int kCentre = 0;
    using Weight = Words;
    using Sum = Words;

    PENSTOCK_INLINE Weight prepare(Words w) { return w; }

    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Weight (&w)[1], const Words (&x)[1]) {
        const __m256i products = _mm256_maddubs_epi16(w[0].v, x[0].v);
        sum.v = in_order(step == 0 ? products : _mm256_add_epi16(sum.v, products));
    }

    PENSTOCK_INLINE I32 finish(Sum sum) { return {widen_pairs(sum.v)}; }
};

// 2 words x 2 x 63 x 127 = 32004 fits an int16: every second sum is widened to int32. A step
// multiplies both words, which leaves one accumulator per row and vector, so that each load of
// activations serves two vectors.
template <>
struct Dot<6> {
    static constexpr int kVectors = 2;
    static constexpr int kStepWords = 2;
    static constexpr int kCentre = 0;
    using Weight = Words;
    using Sum = I32;

    PENSTOCK_INLINE Weight prepare(Words w) { return w; }

    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Weight (&w)[2], const Words (&x)[2]) {
        const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(w[0].v, x[0].v),
                                                  _mm256_maddubs_epi16(w[1].v, x[1].v));
        const __m256i wide = widen_pairs(products);
        sum.v = in_order(step == 0 ? wide : _mm256_add_epi32(sum.v, wide));
    }

    PENSTOCK_INLINE I32 finish(Sum sum) { return sum; }
};

// 2 x 255 x 127 does not fit an int16, but 2 x 128 x 127 = 32512 does: the absolute value of q -
// 128 is multiplied by an activation with the sign of q - 128.
template <>
struct Dot<8> {
    static constexpr int kVectors = 2;
    static constexpr int kStepWords = 1;
    static constexpr int kCentre = 128;
    struct Weight {
        __m256i size;
        __m256i sign;
    };
    using Sum = I32;

    PENSTOCK_INLINE Weight prepare(Words w) {
        const __m256i centred = _mm256_xor_si256(w.v, _mm256_set1_epi8(-128));
        return {_mm256_abs_epi8(centred), centred};
    }

    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Weight (&w)[1], const Words (&x)[1]) {
        const __m256i signs = _mm256_sign_epi8(x[0].v, w[0].sign);
        const __m256i wide = widen_pairs(_mm256_maddubs_epi16(w[0].size, signs));
        sum.v = in_order(step == 0 ? wide : _mm256_add_epi32(sum.v, wide));
    }

    PENSTOCK_INLINE I32 finish(Sum sum) { return sum; }
};

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
