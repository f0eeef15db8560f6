// Attention arithmetic in float32, over a float32 or float16 cache. Included by attention.inl.h.
#pragma once

#include "cpu/attention/attention_rows.inl.h"
#include "cpu/attention/attention_tile.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

PENSTOCK_INLINE F32 load_element(const float* p) {
    return load(p);
}
PENSTOCK_INLINE F32 load_element(const uint16_t* p) {
    return load_f16(p);
}
PENSTOCK_INLINE F32 load_element(const float* p, int n) {
    return load(p, n);
}
PENSTOCK_INLINE F32 load_element(const uint16_t* p, int n) {
    return load_f16(p, n);
}

// Products with one fused multiply-add per step.
template <class Element>
struct FloatProducts {
    using Factor = float;
    using Stored = Element;
    static constexpr int kFactors = 1;
    static constexpr int kLoaded = kLanes * static_cast<int>(sizeof(Element));

    PENSTOCK_INLINE F32 factor(const float* a) { return broadcast(*a); }
    PENSTOCK_INLINE F32 column(const Element* b, int64_t k, int64_t stride) {
        return load_element(b + k * stride);
    }
    PENSTOCK_INLINE F32 add(F32 sum, F32 factor, F32 column) { return fma(factor, column, sum); }
};

template <class Element>
struct F32Numerics {
    using Cached = Element;
    using Packed = float; // type of queries and weights, and of keys and values of a tile
    using Rows = TileRows<F32Numerics>;
    static constexpr int kStep = 1, kDepthUnit = 1, kScoredRows = kMaxRows;
    static constexpr bool kIntegers = false;
    using CacheProducts = FloatProducts<Element>;
    using TileProducts = FloatProducts<float>;

    // Stores the first n lanes.
    PENSTOCK_INLINE void pack(float* to, F32 a, int n) { store_lanes(to, a, n); }

    // Converts the first n lanes of one step of a tile.
    PENSTOCK_INLINE void convert(float* to, const Element* from, int64_t, int n) {
        store(to, n == kLanes ? load_element(from) : load_element(from, n));
    }

    static void weigh(const Scored<float>& tile) {
        weigh_seen(tile, [&](int r, float reference, float shrink) {
            weigh_row(tile, r, reference, shrink);
        });
    }

    PENSTOCK_INLINE void weigh_row(const Scored<float>& tile, int r, float reference,
                                   float shrink) {
        F32 mass = load(tile.mass + r * kLanes) * broadcast(shrink);
        tile.for_seen_vectors(r, [&](int v) {
            float* scores = tile.scores + r * kTile + v * kLanes;
            const F32 weight = exp2_nonpositive(load(scores) - broadcast(reference));
            store(scores, weight);
            mass = mass + weight;
        });
        store(tile.mass + r * kLanes, mass);
        tile.shrink(r, shrink);
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
