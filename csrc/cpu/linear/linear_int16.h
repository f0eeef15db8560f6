// Products of 16-bit float weights that are packed as int16 (packed_tile.h), in pairs (VPDPWSSD,
// VPMADDWD). Included by linear_dense.inl.h.
//
// Each group of 64 activations of a row is rounded to int16: value = x * (4095 / max|x|), rounded
// half to even; scale = max|x| / 4095. A group whose largest value is below 2^-100 becomes zeros. A
// NaN or an infinity in a group makes its scale NaN, so that the row's products are NaN. The
// arithmetic is the same for every M: the product of a group is exact; out = (sum over the groups,
// in order, of fma(product, weight scale * activation scale, sum)) + bias.
#pragma once

#include "cpu/dot/int16_pairs.h"
#include "cpu/linear/linear_bf16.h"
#include "cpu/linear/linear_rounded.h"
#include "cpu/simd/unrolled.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if defined(PENSTOCK_INT16_PRODUCTS)

struct Int16Format {
    static constexpr int kGroupVectors = static_cast<int>(kFixedGroup) / kLanes;
    static constexpr int64_t kScaleBytes = 4 * kPackedTileRows;
    static constexpr int64_t kPairBytes = 4 * kPackedTileRows;

    PENSTOCK_INLINE int64_t row_bytes(int64_t depth) { return fixed_row_bytes(depth); }
    PENSTOCK_INLINE int64_t row_offset(const LinearWeights& linear) {
        return linear.rounded_row_bytes - fixed_row_bytes(linear.depth);
    }
    PENSTOCK_INLINE int64_t steps(int64_t depth) { return ceil_div(depth, kUnit); }

    // Rounds a group. Lane i of vector j has k = kLanes j + i; lanes past the end of the row are 0.
    PENSTOCK_INLINE float round_group(const F32 (&x)[kGroupVectors], int64_t vectors, int16_t* to) {
        F32 largest = abs(x[0]), zero = x[0] - x[0];
        unrolled<kGroupVectors - 1>([&](auto j) {
            largest = max(largest, abs(x[j.value + 1]));
            zero = zero + (x[j.value + 1] - x[j.value + 1]);
        });
        const float top = reduce_max(largest);
        const bool finite = !any(!equal(zero, zero));
        const float inverse =
            finite && top >= kLeastFixedGroup ? kLargestFixedActivation / top : 0.0f;
        const auto rounded = [&](int64_t j) {
            return to_int(finite ? x[j] * broadcast(inverse) : broadcast(0.0f));
        };
        // Elements i and i + 16 of a unit are a pair.
        for (int64_t j = 0; j < vectors; j += 2 * kPackedTileVectors) {
            for (int64_t p = 0; p < kPackedTileVectors; ++p) {
                store_int16_pairs(to + (j + 2 * p) * kLanes,
                                  low_halves(rounded(j + p), rounded(j + p + kPackedTileVectors)));
            }
        }
        return finite ? top / kLargestFixedActivation : __builtin_nanf("");
    }

    PENSTOCK_INLINE void round(const float* x, int64_t depth, uint8_t* row) {
        auto* const values = reinterpret_cast<int16_t*>(row);
        auto* const scales = reinterpret_cast<float*>(row + fixed_scales_offset(depth));
        for (int64_t k = 0; k < depth; k += kFixedGroup) {
            F32 group[kGroupVectors];
            const int64_t left = depth - k;
            for (int j = 0; j < kGroupVectors; ++j) {
                group[j] = left >= (j + 1) * kLanes
                               ? load(x + k + j * kLanes)
                               : load(x + k + j * kLanes, static_cast<int>(left - j * kLanes));
            }
            const int64_t vectors = quotient(whole_units(left), kLanes);
            scales[quotient(k, kFixedGroup)] =
                round_group(group, vectors < kGroupVectors ? vectors : kGroupVectors, values + k);
        }
    }

    template <int kRows, int kTiles>
    PENSTOCK_INLINE void add_unit(const uint8_t* const (&tiles)[kTiles], int64_t offset,
                                  const int16_t* const (&rows)[kRows],
                                  I32 (&sum)[kRows][kTiles * kPackedTileVectors]) {
        constexpr int kVectors = kTiles * kPackedTileVectors;
        for (int64_t pair = 0; pair < kUnit / 2; ++pair) {
            Int16Pairs weights[kVectors];
            unrolled<kVectors>([&](auto v) {
                weights[v.value] = load_int16_pairs(
                    reinterpret_cast<const int16_t*>(tiles[v.value / kPackedTileVectors] + offset +
                                                     pair * kPairBytes) +
                    v.value % kPackedTileVectors * 2 * kLanes);
            });
            unrolled<kRows>([&](auto m) {
                const Int16Pairs value = broadcast_int16_pair(rows[m.value] + 2 * pair);
                unrolled<kVectors>([&](auto v) {
                    I32& s = sum[m.value][v.value];
                    s = add_int16_pairs(s, weights[v.value], value);
                });
            });
        }
    }

    template <int kRows, int kTiles>
    PENSTOCK_INLINE void multiply(const uint8_t* const (&tiles)[kTiles], int64_t depth,
                                  const uint8_t* const (&rows)[kRows], PrefetchLines& prefetcher,
                                  F32 (&total)[kRows][kTiles][kPackedTileVectors]) {
        constexpr int kVectors = kTiles * kPackedTileVectors;
        F32 acc[kRows][kVectors];
        set_zero(acc);
        int64_t at = 0; // in a packed tile
        for (int64_t k = 0; k < depth; k += kFixedGroup) {
            const int64_t scales = at;
            I32 sum[kRows][kVectors];
            unrolled<kRows * kVectors>([&](auto i) {
                sum[i.value / kVectors][i.value % kVectors] = broadcast(int32_t{0});
            });
            at += kScaleBytes;
            for (int64_t unit = k; unit < depth && unit < k + kFixedGroup; unit += kUnit) {
                prefetcher.step();
                const int16_t* in[kRows];
                for (int m = 0; m < kRows; ++m)
                    in[m] = reinterpret_cast<const int16_t*>(rows[m]) + unit;
                add_unit(tiles, at, in, sum);
                at += kUnit / 2 * kPairBytes;
            }
            const int64_t place = fixed_scales_offset(depth) + k / kFixedGroup * 4;
            F32 weight_scale[kVectors];
            unrolled<kVectors>([&](auto v) {
                weight_scale[v.value] = load(
                    reinterpret_cast<const float*>(tiles[v.value / kPackedTileVectors] + scales) +
                    v.value % kPackedTileVectors * kLanes);
            });
            unrolled<kRows>([&](auto m) {
                const F32 scale = broadcast(*reinterpret_cast<const float*>(rows[m.value] + place));
                unrolled<kVectors>([&](auto v) {
                    F32& s = acc[m.value][v.value];
                    s = fma(to_float(sum[m.value][v.value]), weight_scale[v.value] * scale, s);
                });
            });
        }
        unrolled<kRows * kVectors>([&](auto i) {
            constexpr int m = i.value / kVectors, v = i.value % kVectors;
            total[m][v / kPackedTileVectors][v % kPackedTileVectors] = acc[m][v];
        });
    }
};

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
