// Attention in float32, over a cache of float32 or float16: what of a tile's arithmetic depends on
// the numbers that it is made of. Included by attention.inl.h.
#pragma once

#include "cpu/attention_rows.inl.h"
#include "cpu/attention_tile.inl.h"
#include "cpu/math.inl.h"
#include "cpu/simd.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
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

// One fused multiply-add a step.
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
struct Floats {
    using Cached = Element;
    using Packed = float; // queries, weights, and keys and values of a tile
    using Rows = TileRows<Floats>;
    static constexpr int kStep = 1, kDepthUnit = 1;
    using OfCache = FloatProducts<Element>;
    using OfTile = FloatProducts<float>;

    // The first n lanes.
    PENSTOCK_INLINE void pack(float* to, F32 a, int n) { store_lanes(to, a, n); }

    // One step of a tile, its first n lanes.
    PENSTOCK_INLINE void convert(float* to, const Element* from, int64_t, int n) {
        store(to, n == kLanes ? load_element(from) : load_element(from, n));
    }

    // Turns scores into weights relative to the row's new highest score, in place, and brings the
    // row's state to that highest score.
    PENSTOCK_INLINE void weigh(const Scored<float>& tile) {
        for (int r = 0; r < tile.count; ++r) {
            if (tile.from[r] < tile.to[r])
                weigh_row(tile, r);
        }
    }

    PENSTOCK_INLINE void weigh_row(const Scored<float>& tile, int r) {
        float* scores = tile.scores + r * kTile;
        const int begin = tile.from[r], end = tile.to[r];
        const int first_vector = begin / kLanes, last_vector = (end - 1) / kLanes;
        const F32 hidden = broadcast(-__builtin_inff());
        F32 top = broadcast(tile.highest[r]);
        for (int v = first_vector; v <= last_vector; ++v) {
            F32 score = load(scores + v * kLanes);
            if (begin > v * kLanes)
                score = select(first(begin - v * kLanes), hidden, score);
            score = select(first(end - v * kLanes), score, hidden);
            store(scores + v * kLanes, score);
            top = max(top, score);
        }
        const float highest = reduce_max(top);
        const float shrink = exp2_below(tile.highest[r], highest);
        // Where all scores so far are -inf, any finite reference makes all weights 0.
        const F32 reference = broadcast(highest == -__builtin_inff() ? 0.0f : highest);
        F32 mass = load(tile.mass + r * kLanes) * broadcast(shrink);
        for (int v = first_vector; v <= last_vector; ++v) {
            const F32 weight = exp2_nonpositive(load(scores + v * kLanes) - reference);
            store(scores + v * kLanes, weight);
            mass = mass + weight;
        }
        store(tile.mass + r * kLanes, mass);
        tile.highest[r] = highest;
        tile.shrink(r, shrink);
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
