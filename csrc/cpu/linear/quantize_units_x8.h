// Quantizes eight units at a time, so that their horizontal sums share shuffles: unit by unit, the
// horizontal sums would take longer than everything else.
//
//   struct UnitSumsX8                lane i < 8 is of unit i: sum of quotient times value, and
//                                    exact sums of squares, of the first and of the last 16 values
//   round_units_x8(x, inverse, unit) -> UnitSumsX8     writes values: x * inverse, half to even
//   write_fields(unit, scale, scaled_sum, halves, centre)   lane i < 8 to unit i
//   struct UnitScales               of kLanes units, by lane
//   read_scales(units, n) -> UnitScales   of n units; lanes after n repeat the last unit
//   join_halves(a, b) -> I32        two int16 per lane: the low ones of a and of b
//   write_pairs(paired, joined, n)  scales and sums in lanes 2 i and 2 i + 1, joined, to pair i,
//                                   for at most n pairs
//
// The sum of quotients times values has 16 partial sums, each over k and k + 16 in order, which are
// then added by halves. All ISAs give the same bits.
#pragma once

#include "cpu/pack/packed_tile.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct UnitSumsX8 {
    F32 matched;
    I32 squares, first, last;
};

struct UnitScales {
    F32 scale, scaled_sum;
};

PENSTOCK_INLINE I32 join_halves(I32 a, I32 b) {
    return (a & broadcast(0xffff)) | shift_left<16>(b);
}

#if defined(PENSTOCK_SIMD_AVX512)

// Returns the sums of four lanes: lane 4 b + i is the sum of lanes 4 b .. 4 b + 3 of rows[i].
PENSTOCK_INLINE __m512i add_fours(const __m512i (&rows)[4]) {
    __m512i two[2];
    for (int i = 0; i < 2; ++i) {
        const __m512i a = rows[2 * i], b = rows[2 * i + 1];
        two[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    return _mm512_add_epi32(_mm512_unpacklo_epi64(two[0], two[1]),
                            _mm512_unpackhi_epi64(two[0], two[1]));
}

PENSTOCK_INLINE UnitSumsX8 round_units_x8(const float* const (&x)[8],
                                          const float (&inverse)[kLanes],
                                          QuantizedUnit* const (&unit)[8]) {
    // Restores the order of values: packing interleaves words k of both units with words k + 16.
    const __m512i in_order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi8(1);
    F32 matched[8];
    __m512i squares[4], sums[4]; // of two units each; every four lanes sum 16 values of one unit
#pragma GCC unroll 4
    for (int two = 0; two < 4; ++two) {
        __m512i words[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const float* from = x[2 * two + i];
            const F32 factor = broadcast(inverse[2 * two + i]);
            const F32 first = load(from) * factor, last = load(from + kLanes) * factor;
            const I32 of_first = to_int(first), of_last = to_int(last);
            matched[2 * two + i] = fma(last, to_float(of_last), first * to_float(of_first));
            words[i] = _mm512_packs_epi32(of_first.v, of_last.v);
        }
        const __m512i values =
            _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(words[0], words[1]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(unit[2 * two]->value),
                            _mm512_castsi512_si256(values));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(unit[2 * two + 1]->value),
                            _mm512_extracti64x4_epi64(values, 1));
        const __m512i sizes = _mm512_abs_epi8(values);
        squares[two] = _mm512_dpbusd_epi32(zero, sizes, sizes);
        sums[two] = _mm512_dpbusd_epi32(zero, ones, values);
    }
    const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i last = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 15, 7, 14, 6, 13, 5, 12, 4);
    const __m512i square = add_fours(squares), sum = add_fours(sums);
    return {reduce_add_each(matched),
            {_mm512_add_epi32(_mm512_permutexvar_epi32(first, square),
                              _mm512_permutexvar_epi32(last, square))},
            {_mm512_permutexvar_epi32(first, sum)},
            {_mm512_permutexvar_epi32(last, sum)}};
}

PENSTOCK_INLINE void write_fields(QuantizedUnit* const (&unit)[8], F32 scale, F32 scaled_sum,
                                  I32 halves, I32 centre) {
    const __m256 a = _mm512_castps512_ps256(scale.v), b = _mm512_castps512_ps256(scaled_sum.v);
    const __m256 c = _mm256_castsi256_ps(_mm512_castsi512_si256(halves.v));
    const __m256 d = _mm256_castsi256_ps(_mm512_castsi512_si256(centre.v));
    const __m256d pairs[4] = {
        _mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d)),
        _mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d))};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m256d left = pairs[i / 2 * 2], right = pairs[i / 2 * 2 + 1];
        const __m256d fields =
            i % 2 == 0 ? _mm256_unpacklo_pd(left, right) : _mm256_unpackhi_pd(left, right);
        std::memcpy(&unit[i]->scale, &fields, 16);
        const __m128d upper = _mm256_extractf128_pd(fields, 1);
        std::memcpy(&unit[i + 4]->scale, &upper, 16);
    }
}

PENSTOCK_INLINE UnitScales read_scales(const QuantizedUnit* units, int64_t n) {
    __m512 four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const auto fields = [&](int64_t unit) {
            return _mm_loadu_ps(&units[unit < n ? unit : n - 1].scale);
        };
        __m512 rows = _mm512_castps128_ps512(fields(i));
        rows = _mm512_insertf32x4(rows, fields(i + 4), 1);
        rows = _mm512_insertf32x4(rows, fields(i + 8), 2);
        four[i] = _mm512_insertf32x4(rows, fields(i + 12), 3);
    }
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(four[0], four[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(four[2], four[3]));
    return {{_mm512_castpd_ps(_mm512_unpacklo_pd(a, b))},
            {_mm512_castpd_ps(_mm512_unpackhi_pd(a, b))}};
}

PENSTOCK_INLINE void write_pairs(PairedUnits* paired, I32 joined, int64_t n) {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const auto some = static_cast<__mmask8>(n < kLanes / 2 ? (1U << n) - 1U : 0xffU);
    _mm512_mask_storeu_epi64(paired, some, _mm512_shuffle_epi8(joined.v, order));
}

#else

constexpr int kUnitVectors = kUnit / kLanes;
constexpr int kChains = kUnitVectors / 2; // vectors that hold the 16 partial sums

PENSTOCK_INLINE UnitSumsX8 round_units_x8(const float* const (&x)[8],
                                          const float (&inverse)[kLanes],
                                          QuantizedUnit* const (&unit)[8]) {
    F32 matched[8];
    int32_t squares[kLanes] = {}, sums[2][kLanes] = {};
    for (int i = 0; i < 8; ++i) {
        F32 chains[kChains] = {};
        I32 halves[2] = {};
        F32 square = broadcast(0.0f);
        for (int j = 0; j < kUnitVectors; ++j) {
            const F32 quotient = load(x[i] + j * kLanes) * broadcast(inverse[i]);
            const I32 rounded = to_int(quotient);
            store_i8(unit[i]->value + j * kLanes, rounded);
            const F32 value = to_float(rounded);
            chains[j % kChains] = fma(quotient, value, chains[j % kChains]);
            square = fma(value, value, square);
            halves[j / kChains] = halves[j / kChains] + rounded;
        }
        for (int width = kChains / 2; width > 0; width /= 2) {
            for (int j = 0; j < width; ++j)
                chains[j] = chains[j] + chains[j + width];
        }
        matched[i] = chains[0];
        squares[i] = static_cast<int32_t>(reduce_add(square));
        sums[0][i] = reduce_add(halves[0]);
        sums[1][i] = reduce_add(halves[1]);
    }
    return {reduce_add_each(matched), load(squares), load(sums[0]), load(sums[1])};
}

PENSTOCK_INLINE void write_fields(QuantizedUnit* const (&unit)[8], F32 scale, F32 scaled_sum,
                                  I32 halves, I32 centre) {
    float scales[kLanes], scaled_sums[kLanes];
    int32_t both[kLanes], centres[kLanes];
    store(scales, scale);
    store(scaled_sums, scaled_sum);
    store(both, halves);
    store(centres, centre);
    for (int i = 0; i < 8; ++i) {
        unit[i]->scale = scales[i];
        unit[i]->scaled_sum = scaled_sums[i];
        std::memcpy(unit[i]->sum, &both[i], sizeof both[i]);
        unit[i]->centre = centres[i];
    }
}

PENSTOCK_INLINE UnitScales read_scales(const QuantizedUnit* units, int64_t n) {
    float scales[kLanes], scaled_sums[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        scales[i] = units[i < n ? i : n - 1].scale;
        scaled_sums[i] = units[i < n ? i : n - 1].scaled_sum;
    }
    return {load(scales), load(scaled_sums)};
}

PENSTOCK_INLINE void write_pairs(PairedUnits* paired, I32 joined, int64_t n) {
    int16_t halves[kLanes][2];
    std::memcpy(halves, &joined, sizeof halves);
    for (int i = 0; i < kLanes && i < 2 * n; ++i) {
        paired[i / 2].scale[i % 2] = halves[i][0];
        paired[i / 2].sum[i % 2] = halves[i][1];
    }
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
