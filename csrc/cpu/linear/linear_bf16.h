// Products of bf16 weights in pairs (VDPBF16PS). Included by linear_dense.inl.h.
//
// Activations are rounded to bf16, half to even, for any number of rows. The arithmetic is the same
// for every M: even = add_bf16_pairs over the pairs of k number 0, 2, 4 ..., odd = add_bf16_pairs
// over the pairs number 1, 3, 5 ..., each in order; out = (even + odd) + bias.
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/linear/linear_rounded.h"
#include "cpu/simd/unrolled.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Pairs of k per prefetch step. More frequent steps would need registers that are not free.
constexpr int64_t kPairsEach = 16;

#if defined(PENSTOCK_BF16_PAIRS)

struct Bf16Format {
    PENSTOCK_INLINE int64_t row_bytes(int64_t depth) { return bf16_row_bytes(depth); }
    PENSTOCK_INLINE int64_t row_offset(const LinearWeights&) { return 0; }
    PENSTOCK_INLINE int64_t steps(int64_t depth) {
        return ceil_div(ceil_div(depth, 2), kPairsEach);
    }

    PENSTOCK_INLINE void round(const float* x, int64_t depth, uint8_t* row) {
        auto* const to = reinterpret_cast<uint16_t*>(row);
        for (int64_t k = 0; k < depth; k += kLanes) {
            const int64_t left = depth - k;
            round_bf16(to + k, left < kLanes ? load(x + k, static_cast<int>(left)) : load(x + k));
        }
    }

    template <int kRows, int kTiles>
    PENSTOCK_INLINE void multiply(const uint8_t* const (&tiles)[kTiles], int64_t depth,
                                  const uint8_t* const (&rows)[kRows], PrefetchLines& prefetcher,
                                  F32 (&total)[kRows][kTiles][kPackedTileVectors]) {
        F32 sum[2][kRows][kTiles];
        set_zero(sum[0]);
        set_zero(sum[1]);
        const auto add = [&](int64_t pair, auto parity) {
            Bf16Pairs weights[kTiles];
            unrolled<kTiles>([&](auto j) {
                weights[j.value] = load_bf16_pairs(
                    reinterpret_cast<const uint16_t*>(tiles[j.value]) + pair * 2 * kPackedTileRows);
            });
            unrolled<kRows>([&](auto m) {
                const auto* row = reinterpret_cast<const uint16_t*>(rows[m.value]);
                const Bf16Pairs value = broadcast_bf16_pair(row + 2 * pair);
                unrolled<kTiles>([&](auto j) {
                    F32& s = sum[parity.value][m.value][j.value];
                    s = add_bf16_pairs(s, weights[j.value], value);
                });
            });
        };
        const int64_t pairs = ceil_div(depth, 2);
        int64_t pair = 0;
        while (pair + 1 < pairs) {
            prefetcher.step();
            const int64_t end = pair + kPairsEach < pairs ? pair + kPairsEach : pairs;
            for (; pair + 1 < end; pair += 2) {
                add(pair, Index<0>{});
                add(pair + 1, Index<1>{});
            }
        }
        if (pair < pairs)
            add(pair, Index<0>{});
        unrolled<kRows>([&](auto m) {
            unrolled<kTiles>([&](auto j) {
                total[m.value][j.value][0] = sum[0][m.value][j.value] + sum[1][m.value][j.value];
            });
        });
    }
};

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
