// Dot products of quants that were unpacked once for many rows. Included by unpacked_tile.h.
//
//   UnpackedDot<bits>
//     kVectors                vectors of a packed tile whose accumulators fit the registers
//     kWordValues             k per word of unpacked quants, and of activations
//     kStepWords              words of a step
//     kCentred                whether unpack already subtracts the zero point
//     Row                     the form in which steps read a unit of an activation row; value,
//                             scale, scaled_sum and sum as in QuantizedUnit
//     unpack<i>(words, zero)  unpacked word i of a packed tile's word of 4 k
//     Sum                     accumulators of one group
//     mac<step>(Sum&, w, x)   adds the words of a step; step 0 resets the accumulators
//     finish(Sum) -> I32      sum of q * x, or (q - zero) * x, over the group
//
// If Row is not QuantizedUnit, read_row(unit) converts a QuantizedUnit to a Row.
#pragma once

#include <type_traits>

#include "cpu/dot/int_dot.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Multiplies quants in the form in which packed tiles hold them.
template <int kBits>
struct UnpackedDot {
    using D = Dot<kBits>;
    static constexpr int kVectors = D::kVectors;
    static constexpr int kWordValues = 4;
    static constexpr int kStepWords = D::kStepWords;
    static constexpr bool kCentred = false;
    static_assert(D::kCentre == 0);
    using Row = QuantizedUnit;
    using Sum = typename D::Sum;

    template <int i>
    PENSTOCK_INLINE Words unpack(const Words& w, int32_t) {
        return D::prepare(w);
    }
    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Words (&w)[kStepWords], const Words (&x)[kStepWords]) {
        D::template mac<step>(sum, w, x);
    }
    PENSTOCK_INLINE I32 finish(const Sum& sum) { return D::finish(sum); }
};

#if defined(PENSTOCK_SIMD_AVX2) && !defined(PENSTOCK_AVX_VNNI)

// Multiplies pairs of int16 and accumulates in int32: as many multiplications and additions as
// Dot<8>, but half the accumulators, no zero point, and no reduction at the end of a group.
template <>
struct UnpackedDot<8> {
    static constexpr int kVectors = 2;
    static constexpr int kWordValues = 2;
    static constexpr int kStepWords = 1;
    static constexpr bool kCentred = true;
    using Sum = I32;
    struct Row {
        int16_t value[kUnit];
        float scale;
        float scaled_sum;
        int16_t sum[2];
        int32_t padding;
    };

    PENSTOCK_INLINE Row read_row(const QuantizedUnit& unit) {
        Row row;
        for (int half = 0; half < 2; ++half) {
            const auto* from = reinterpret_cast<const __m128i*>(unit.value) + half;
            const __m256i values = _mm256_cvtepi8_epi16(_mm_loadu_si128(from));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.value) + half, values);
        }
        row.scale = unit.scale;
        row.scaled_sum = unit.scaled_sum;
        row.sum[0] = unit.sum[0], row.sum[1] = unit.sum[1];
        row.padding = 0;
        return row;
    }
    template <int i>
    PENSTOCK_INLINE Words unpack(Words w, int32_t zero) {
        constexpr char k0 = 2 * i, k1 = 2 * i + 1, none = -1;
        const __m128i pairs = _mm_setr_epi8(k0, none, k1, none, 4 + k0, none, 4 + k1, none, 8 + k0,
                                            none, 8 + k1, none, 12 + k0, none, 12 + k1, none);
        const __m256i wide = _mm256_shuffle_epi8(w.v, _mm256_broadcastsi128_si256(pairs));
        return {_mm256_sub_epi16(wide, _mm256_set1_epi16(static_cast<int16_t>(zero)))};
    }
    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Words (&w)[1], const Words (&x)[1]) {
        const __m256i products = _mm256_madd_epi16(w[0].v, x[0].v);
        sum.v = in_order(step == 0 ? products : _mm256_add_epi32(sum.v, products));
    }
    PENSTOCK_INLINE I32 finish(Sum sum) { return sum; }
};

#endif

template <int kBits>
using UnpackedRow = typename UnpackedDot<kBits>::Row;

// Whether products read activation rows without conversion.
template <int kBits>
constexpr bool kReadsRows = std::is_same_v<UnpackedRow<kBits>, QuantizedUnit>;

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
