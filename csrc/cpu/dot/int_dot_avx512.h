// Integer dot products in AVX-512 VNNI: VPDPBUSD is exact for every bit width. Included by
// int_dot.h, which documents every function.
#pragma once

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct Words {
    __m512i v;
};

PENSTOCK_INLINE Words load_words(const uint8_t* p) {
    return {_mm512_loadu_si512(p)};
}
PENSTOCK_INLINE Words broadcast_word(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return {_mm512_set1_epi32(word)};
}
PENSTOCK_INLINE Words low_nibbles(Words w) {
    return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))};
}
PENSTOCK_INLINE Words high_nibbles(Words w) {
    return {_mm512_and_si512(_mm512_srli_epi16(w.v, 4), _mm512_set1_epi8(15))};
}
PENSTOCK_INLINE Words table_lookup(const uint8_t (&table)[16], Words w) {
    const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), w.v)};
}
template <int i>
PENSTOCK_INLINE Words two_bits(Words w) {
    const __m512i moved = i == 0   ? _mm512_slli_epi16(w.v, 4)
                          : i == 1 ? _mm512_slli_epi16(w.v, 2)
                          : i == 2 ? w.v
                                   : _mm512_srli_epi16(w.v, 2);
    return {_mm512_and_si512(moved, _mm512_set1_epi8(0x30))};
}
PENSTOCK_INLINE Words join(Words a, Words b) {
    return {_mm512_or_si512(a.v, b.v)};
}
PENSTOCK_INLINE I32 sums_times(const int16_t* p, int32_t first, int32_t second) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    const int32_t factors = (second << 16) | (first & 0xffff);
    return {_mm512_madd_epi16(_mm512_set1_epi32(pair), _mm512_set1_epi32(factors))};
}
template <int i>
PENSTOCK_INLINE I32 byte_of(Words w) {
    const __m512i moved = i == 0 ? w.v : _mm512_srli_epi32(w.v, 8 * i);
    return {i == 3 ? moved : _mm512_and_si512(moved, _mm512_set1_epi32(255))};
}

PENSTOCK_INLINE I32 add_products(I32 sum, Words w, Words x) {
    return {_mm512_dpbusd_epi32(sum.v, w.v, x.v)};
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
