// Integer dot products over arrays. Included by int_dot.h, which documents every function.
#pragma once

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct Words {
    I32 v; // four bytes in each lane
};

PENSTOCK_INLINE Words load_words(const uint8_t* p) {
    return {{loaded<IntHalf>(p), loaded<IntHalf>(p + sizeof(IntHalf))}};
}
PENSTOCK_INLINE Words broadcast_word(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return {broadcast(word)};
}
PENSTOCK_INLINE Words low_nibbles(Words w) {
    return {w.v & broadcast(int32_t{0x0f0f0f0f})};
}
PENSTOCK_INLINE Words high_nibbles(Words w) {
    return low_nibbles({shift_right<4>(w.v)});
}
PENSTOCK_INLINE Words table_lookup(const uint8_t (&table)[16], Words w) {
    uint8_t bytes[4 * kLanes];
    std::memcpy(bytes, &w.v, sizeof bytes);
    for (uint8_t& byte : bytes)
        byte = table[byte];
    return load_words(bytes);
}
template <int i>
PENSTOCK_INLINE Words two_bits(Words w) {
    return {shift_left<4>(shift_right<2 * i>(w.v) & broadcast(int32_t{0x03030303}))};
}
PENSTOCK_INLINE Words join(Words a, Words b) {
    return {a.v | b.v};
}
PENSTOCK_INLINE I32 sums_times(const int16_t* p, int32_t first, int32_t second) {
    return broadcast(static_cast<int32_t>(p[0] * first + p[1] * second));
}
template <int i>
PENSTOCK_INLINE I32 byte_of(const Words& w) {
    return shift_right<8 * i>(w.v) & broadcast(int32_t{255});
}

using Shorts = VectorOf<int16_t, 2 * kHalfLanes>::Type;

// Returns the sum of the two int16 of each lane.
PENSTOCK_INLINE IntHalf sums_of_pairs(Shorts pairs) {
    const auto first = bits_as<IntHalf>(bits_as<UintHalf>(pairs) << 16) >> 16;
    return first + (bits_as<IntHalf>(pairs) >> 16);
}

// Adds the products of unsigned and signed bytes, which fit int16.
PENSTOCK_INLINE IntHalf add_products(IntHalf sum, IntHalf w, IntHalf x) {
    using Unsigned = VectorOf<uint16_t, 2 * kHalfLanes>::Type;
    const auto unsigned_w = bits_as<Unsigned>(w);
    const auto even_w = bits_as<Shorts>(unsigned_w & 255), odd_w = bits_as<Shorts>(unsigned_w >> 8);
    const auto even_x = bits_as<Shorts>(bits_as<Unsigned>(x) << 8) >> 8;
    const auto odd_x = bits_as<Shorts>(x) >> 8;
    return sum + sums_of_pairs(even_w * even_x) + sums_of_pairs(odd_w * odd_x);
}
PENSTOCK_INLINE I32 add_products(I32 sum, Words w, Words x) {
    return {add_products(sum.low, w.v.low, x.v.low), add_products(sum.high, w.v.high, x.v.high)};
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA

#include "cpu/dot/exact_dot.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr bool kDotsAlike = true;

template <int kBits>
using Dot = ExactDot;

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
