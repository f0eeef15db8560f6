// The k best tokens of a row. Included by sampling.inl.h.
#pragma once

#include "cpu/sampling/sampling_pivots.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

// Largest k for which the best tokens are gathered and sorted; for a larger k, the row is cut at
// the k-th token.
constexpr int64_t kSmallTopK = 512;

// Returns the tokens that top-k keeps, k >= 1: all tokens with finite logits if there are fewer
// than k.
PENSTOCK_INLINE Kept best(const Row& row, float highest, int64_t k) {
    const auto all = static_cast<double>(row.vocabulary);
    const LogitInterval interval{-__FLT_MAX__, next_above(highest), 0.0, all};
    return shortest_prefix(row, CountMeasure{}, interval, static_cast<double>(k));
}

constexpr int kMaxTrials = 24;

// Returns the number of chunks with a logit of at least `low`.
PENSTOCK_INLINE int64_t chunks_reaching(const Row& row, float low) {
    int64_t count = 0;
    for (int64_t i = 0; i < row.chunks(); i += kLanes) {
        const int n = lanes_from(i, row.chunks());
        const F32 top = load_lanes(row.maxima + i, n);
        count += __builtin_popcount(bits(less_equal(broadcast(low), top) & first(n)));
    }
    return count;
}

// Returns a logit that at least k chunks reach, so that at least k tokens reach it, but not many
// more. This takes a few passes over the maxima instead of sorting them. Returns -inf if fewer than
// k chunks have a finite logit, or if the search takes too many trials.
PENSTOCK_INLINE float reached_by(const Row& row, float highest, int64_t k) {
    float depth = 1.0f;
    int trials = 0;
    while (chunks_reaching(row, highest - depth) < k) {
        depth *= 2.0f;
        if (++trials == kMaxTrials)
            return -kInfinity;
    }
    float low = highest - depth;
    // a logit that fewer than k chunks reach, or the highest
    float high = trials > 0 ? highest - depth / 2.0f : highest;
    for (; trials < kMaxTrials && chunks_reaching(row, low) > 2 * k; ++trials) {
        const float middle = low + (high - low) / 2.0f;
        (chunks_reaching(row, middle) < k ? high : low) = middle;
    }
    return low;
}

// Makes the k best tokens, 1 <= k <= V, the first k candidates, in any order.
PENSTOCK_INLINE void gather_best(const Row& row, float highest, int64_t k) {
    const float low = k <= row.chunks() ? reached_by(row, highest, k) : -kInfinity;
    const int64_t limit = low > -kInfinity ? 4 * k + kSmallTopK : row.vocabulary;
    const int64_t count = gather(row, low, kInfinity, row.candidates, limit);
    if (count <= limit) {
        keep_best(row.candidates, count, k);
        return;
    }
    const Kept kept = best(row, highest, k); // many logits are equal
    const int64_t above = gather(row, next_above(kept.low), kInfinity, row.candidates, k);
    gather(row, kept.low, next_above(kept.low), row.candidates + above, k - above);
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
