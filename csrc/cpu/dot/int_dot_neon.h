// Integer dot products in NEON with SDOT. Included by int_dot.h, which documents every function.
//
// SDOT adds four int8 products to an int32 exactly. Weights of 4 and 6 bits are valid int8 values.
// For 8-bit weights, 128 is subtracted before the products, and 128 times the sum of the
// activations is added at the end.
#pragma once

#include <type_traits>

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct Words {
    uint8x16_t low, high;
};

PENSTOCK_INLINE Words load_words(const uint8_t* p) {
    return {vld1q_u8(p), vld1q_u8(p + 16)};
}
template <class Value> // int8_t or int16_t
PENSTOCK_INLINE Words broadcast_word(const Value* p) {
    uint32_t word;
    std::memcpy(&word, p, 4);
    const uint8x16_t everywhere = vreinterpretq_u8_u32(vdupq_n_u32(word));
    return {everywhere, everywhere};
}
PENSTOCK_INLINE Words low_nibbles(Words w) {
    return {vandq_u8(w.low, vdupq_n_u8(15)), vandq_u8(w.high, vdupq_n_u8(15))};
}
PENSTOCK_INLINE Words high_nibbles(Words w) {
    return {vshrq_n_u8(w.low, 4), vshrq_n_u8(w.high, 4)};
}
PENSTOCK_INLINE Words table_lookup(const uint8_t (&table)[16], Words w) {
    const uint8x16_t values = vld1q_u8(table);
    return {vqtbl1q_u8(values, w.low), vqtbl1q_u8(values, w.high)};
}
template <int i>
PENSTOCK_INLINE uint8x16_t moved_two_bits(uint8x16_t bytes) {
    if constexpr (i < 2)
        return vshlq_n_u8(bytes, 4 - 2 * i);
    else if constexpr (i == 2)
        return bytes;
    else
        return vshrq_n_u8(bytes, 2);
}
template <int i>
PENSTOCK_INLINE Words two_bits(Words w) {
    const uint8x16_t kept = vdupq_n_u8(0x30);
    return {vandq_u8(moved_two_bits<i>(w.low), kept), vandq_u8(moved_two_bits<i>(w.high), kept)};
}
PENSTOCK_INLINE Words join(Words a, Words b) {
    return {vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)};
}
PENSTOCK_INLINE I32 sums_times(const int16_t* p, int32_t first, int32_t second) {
    return broadcast(static_cast<int32_t>(p[0] * first + p[1] * second));
}

PENSTOCK_INLINE int32x4_t add_products(int32x4_t sum, uint8x16_t w, uint8x16_t x) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
}
PENSTOCK_INLINE I32 add_products(I32 sum, Words w, Words x) {
    return {add_products(sum.low, w.low, x.low), add_products(sum.high, w.high, x.high)};
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA

#include "cpu/dot/exact_dot.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr bool kDotsAlike = false;

struct SignedDot {
    static constexpr int kVectors = 1;
    static constexpr int kStepWords = 1;
    static constexpr int kCentre = 0;
    using Weight = Words;
    struct Sum {
        I32 products;
        int32x4_t activations; // 64 times the activations of a word, in each lane
    };

    PENSTOCK_INLINE Weight prepare(Words w) {
        const uint8x16_t sign = vdupq_n_u8(0x80);
        return {veorq_u8(w.low, sign), veorq_u8(w.high, sign)};
    }

    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Weight (&w)[1], const Words (&x)[1]) {
        if constexpr (step == 0)
            sum = {broadcast(int32_t{0}), vdupq_n_s32(0)};
        sum.products = add_products(sum.products, w[0], x[0]);
        sum.activations = add_products(sum.activations, vdupq_n_u8(64), x[0].low);
    }

    PENSTOCK_INLINE I32 finish(Sum sum) {
        const int32x4_t missing = vaddq_s32(sum.activations, sum.activations);
        return sum.products + I32{missing, missing};
    }
};

template <int kBits>
using Dot = std::conditional_t<kBits == 8, SignedDot, ExactDot>;

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
