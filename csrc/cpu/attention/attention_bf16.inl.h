// Attention arithmetic in bf16 pairs, over a float16 cache, on ISAs with VDPBF16PS. Included by
// attention.inl.h.
//
// Scaled queries, keys, values and softmax weights are rounded to bf16, with a relative error of at
// most 2^-8. A score sums pairs of d, an output sums pairs of keys that start at even positions. If
// a row sees only one key of a pair, the weight and the value of the other key count as 0. The
// softmax sum adds the rounded weights, so that the weights used are normalized: lane i sums pairs
// i, i + 16 ... of a tile.
#pragma once

#include "cpu/attention/attention_rows.inl.h"
#include "cpu/attention/attention_tile.inl.h"
#include "cpu/dot/bf16_pairs.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

#if defined(PENSTOCK_BF16_PAIRS)

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

// Products that read pairs from a converted tile.
struct PairProducts {
    using Factor = uint16_t;
    using Stored = uint16_t;
    static constexpr int kFactors = 2;
    static constexpr int kLoaded = 4 * kLanes;

    PENSTOCK_INLINE Bf16Pairs factor(const uint16_t* a) { return broadcast_bf16_pair(a); }
    PENSTOCK_INLINE Bf16Pairs column(const uint16_t* b, int64_t k, int64_t stride) {
        return load_bf16_pairs(b + k * stride);
    }
    PENSTOCK_INLINE F32 add(F32 sum, Bf16Pairs factor, Bf16Pairs column) {
        return add_bf16_pairs(sum, factor, column);
    }
};

// Products that read float16 from the cache; the two elements of a pair are `stride` apart.
struct CachedPairProducts : PairProducts {
    PENSTOCK_INLINE Bf16Pairs column(const uint16_t* b, int64_t k, int64_t stride) {
        const uint16_t* first = b + 2 * k * stride;
        return interleaved_bf16(load_f16(first), load_f16(first + stride));
    }
};

struct Bf16Numerics {
    using Cached = uint16_t;
    using Packed = uint16_t; // type of queries and weights, and of keys and values of a tile
    using Rows = TileRows<Bf16Numerics>;
    static constexpr int kStep = 2, kDepthUnit = 2, kScoredRows = kMaxRows;
    static constexpr bool kIntegers = false;
    using CacheProducts = CachedPairProducts;
    using TileProducts = PairProducts;

    // Rounds and stores all lanes.
    PENSTOCK_INLINE void pack(uint16_t* to, F32 a, int) { round_bf16(to, a); }

    // Converts the first n lanes of one step of a tile.
    PENSTOCK_INLINE void convert(uint16_t* to, const uint16_t* from, int64_t stride, int n) {
        const F32 first = n == kLanes ? load_f16(from) : load_f16(from, n);
        const F32 second = n == kLanes ? load_f16(from + stride) : load_f16(from + stride, n);
        store_bf16_pairs(to, interleaved_bf16(first, second));
    }

    // Returns the first n lanes of a pair of which only one key (`which`) is seen; the other is 0.
    PENSTOCK_INLINE Bf16Pairs half_column(const uint16_t* from, int n, int which) {
        const F32 zero = broadcast(0.0f), value = n == kLanes ? load_f16(from) : load_f16(from, n);
        return which == 0 ? interleaved_bf16(value, zero) : interleaved_bf16(zero, value);
    }

    static void weigh(const Scored<uint16_t>& tile) {
        static_assert(kTileVectors == 4);
        weigh_seen(tile, [&](int r, float reference, float shrink) {
            weigh_row(tile, r, reference, shrink);
        });
    }

    PENSTOCK_INLINE void weigh_row(const Scored<uint16_t>& tile, int r, float reference,
                                   float shrink) {
        const uint16_t ones[2] = {0x3f80, 0x3f80};
        F32 mass = load(tile.mass + r * kLanes) * broadcast(shrink);
        for (int half = 0; half < kTile; half += 2 * kLanes) {
            const float* scores = tile.scores + r * kTile + half;
            const F32 first = exp2_nonpositive(load(scores) - broadcast(reference));
            const F32 second = exp2_nonpositive(load(scores + kLanes) - broadcast(reference));
            const Bf16Pairs weights = adjacent_bf16(first, second);
            store_bf16_pairs(tile.weights + r * kTile + half, weights);
            mass = add_bf16_pairs(mass, weights, broadcast_bf16_pair(ones));
        }
        store(tile.mass + r * kLanes, mass);
        tile.shrink(r, shrink);
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA

#endif
