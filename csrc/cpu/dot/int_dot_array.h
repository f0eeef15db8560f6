// Integer dot products over arrays. Included by int_dot.h, which documents every function.
#pragma once

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct Words {
    uint8_t v[4 * kLanes];
};

PENSTOCK_INLINE Words load_words(const uint8_t* p) {
    Words words;
    std::memcpy(words.v, p, sizeof words.v);
    return words;
}
PENSTOCK_INLINE Words broadcast_word(const int8_t* p) {
    Words words;
    for (int i = 0; i < kLanes; ++i)
        std::memcpy(words.v + 4 * i, p, 4);
    return words;
}
template <class Function>
PENSTOCK_INLINE Words each_byte(Words w, Function f) {
    for (int i = 0; i < 4 * kLanes; ++i)
        w.v[i] = static_cast<uint8_t>(f(w.v[i], i));
    return w;
}
PENSTOCK_INLINE Words low_nibbles(Words w) {
    return each_byte(w, [](int byte, int) { return byte & 15; });
}
PENSTOCK_INLINE Words high_nibbles(Words w) {
    return each_byte(w, [](int byte, int) { return byte >> 4; });
}
PENSTOCK_INLINE Words table_lookup(const uint8_t (&table)[16], Words w) {
    return each_byte(w, [&](int byte, int) { return table[byte]; });
}
template <int i>
PENSTOCK_INLINE Words two_bits(Words w) {
    return each_byte(w, [](int byte, int) { return ((byte >> (2 * i)) & 3) << 4; });
}
PENSTOCK_INLINE Words join(Words a, const Words& b) {
    return each_byte(a, [&](int byte, int i) { return byte | b.v[i]; });
}
PENSTOCK_INLINE I32 sums_times(const int16_t* p, int32_t first, int32_t second) {
    return broadcast(static_cast<int32_t>(p[0] * first + p[1] * second));
}
template <int i>
PENSTOCK_INLINE I32 byte_of(const Words& w) {
    return each_lane<I32>([&](int lane) { return int32_t{w.v[4 * lane + i]}; });
}

// Not inlined: inlining these loops at every step would add minutes of compile time.
__attribute__((noinline)) inline I32 add_products(I32 sum, const Words& w, const Words& x) {
    for (int i = 0; i < kLanes; ++i) {
        int32_t products = 0;
        for (int j = 4 * i; j < 4 * i + 4; ++j) {
            products += int32_t{w.v[j]} * static_cast<int8_t>(x.v[j]);
        }
        sum.v[i] += products;
    }
    return sum;
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
