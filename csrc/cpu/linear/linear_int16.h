// Products of float16 weights that are packed as int16 (packed_tile.h), in pairs (VPDPWSSD).
// Included by linear_dense.inl.h.
//
// Each group of 64 activations of a row is rounded to int16: value = x * (4095 / max|x|), rounded
// half to even; scale = max|x| / 4095. A group whose largest value is below 2^-100 becomes zeros. A
// NaN or an infinity in a group makes its scale NaN, so that the row's products are NaN. The
// arithmetic is the same for every M: the product of a group is exact; out = (sum over the groups,
// in order, of fma(product * weight scale, activation scale, sum)) + bias.
#pragma once

#include "cpu/dot/int16_pairs.h"
#include "cpu/linear/linear_bf16.h"
#include "cpu/linear/linear_rounded.h"
#include "cpu/simd/unrolled.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if defined(PENSTOCK_BF16_PAIRS)

struct Int16Format {
    static constexpr int kGroupVectors = static_cast<int>(kFixedGroup) / kLanes;
    static constexpr int64_t kScaleBytes = 4 * kPackedTileRows;
    static constexpr int64_t kPairBytes = 4 * kPackedTileRows;

    PENSTOCK_INLINE int64_t row_bytes(int64_t depth) { return fixed_row_bytes(depth); }
    PENSTOCK_INLINE int64_t row_offset(const LinearWeights& linear) {
        return linear.rounded_row_bytes - fixed_row_bytes(linear.depth);
    }
    PENSTOCK_INLINE int64_t steps(int64_t depth) { return ceil_div(depth, kUnit); }

    // Rounds a group. Lane i of vector j has k = 16 j + i; lanes past the end of the row are 0.
    PENSTOCK_INLINE float round_group(const F32 (&x)[kGroupVectors], int64_t vectors, int16_t* to) {
        F32 largest = abs(x[0]), zero = x[0] - x[0];
        unrolled<kGroupVectors - 1>([&](auto j) {
            largest = max(largest, abs(x[j.value + 1]));
            zero = zero + (x[j.value + 1] - x[j.value + 1]);
        });
        const float top = reduce_max(largest);
        const bool finite = !any(!equal(zero, zero));
        const float inverse = finite && top >= 0x1p-100f ? kLargestFixedActivation / top : 0.0f;
        for (int j = 0; j < vectors; j += 2) {
            const F32 low = finite ? x[j] * broadcast(inverse) : broadcast(0.0f);
            const F32 high = finite ? x[j + 1] * broadcast(inverse) : broadcast(0.0f);
            store_int16_pairs(to + j * kLanes, low_halves(to_int(low), to_int(high)));
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
                                  const int16_t* const (&rows)[kRows], I32 (&sum)[kRows][kTiles]) {
        for (int64_t pair = 0; pair < kUnit / 2; ++pair) {
            Int16Pairs weights[kTiles];
            unrolled<kTiles>([&](auto j) {
                weights[j.value] = load_int16_pairs(
                    reinterpret_cast<const int16_t*>(tiles[j.value] + offset + pair * kPairBytes));
            });
            unrolled<kRows>([&](auto m) {
                const Int16Pairs value = broadcast_int16_pair(rows[m.value] + 2 * pair);
                unrolled<kTiles>([&](auto j) {
                    I32& s = sum[m.value][j.value];
                    s = add_int16_pairs(s, weights[j.value], value);
                });
            });
        }
    }

    template <int kRows, int kTiles>
    PENSTOCK_INLINE void multiply(const uint8_t* const (&tiles)[kTiles], int64_t depth,
                                  const uint8_t* const (&rows)[kRows], PrefetchLines& prefetcher,
                                  F32 (&total)[kRows][kTiles]) {
        set_zero(total);
        int64_t at = 0; // in a packed tile
        for (int64_t k = 0; k < depth; k += kFixedGroup) {
            const int64_t scales = at;
            I32 sum[kRows][kTiles];
            unrolled<kRows * kTiles>(
                [&](auto i) { sum[i.value / kTiles][i.value % kTiles] = broadcast(int32_t{0}); });
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
            F32 weight_scale[kTiles];
            unrolled<kTiles>([&](auto j) {
                weight_scale[j.value] =
                    load(reinterpret_cast<const float*>(tiles[j.value] + scales));
            });
            unrolled<kRows>([&](auto m) {
                const F32 scale = broadcast(*reinterpret_cast<const float*>(rows[m.value] + place));
                unrolled<kTiles>([&](auto j) {
                    F32& s = total[m.value][j.value];
                    s = fma(to_float(sum[m.value][j.value]) * weight_scale[j.value], scale, s);
                });
            });
        }
    }
};

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
