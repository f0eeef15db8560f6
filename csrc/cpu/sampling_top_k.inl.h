// The k best tokens of a row. Included by sampling.inl.h.
#pragma once

#include "cpu/sampling_band.inl.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {
namespace sampling {

// Up to here the k best are gathered and sorted; beyond, the row is cut at the k-th.
constexpr int64_t kSmallTopK = 512;

// What top-k keeps, 1 <= k; all that is finite where that is less.
PENSTOCK_INLINE Kept best(const Row& row, float highest, int64_t k) {
    const auto all = static_cast<double>(row.vocabulary);
    const Band band{-__FLT_MAX__, next_above(highest), 0.0, all};
    return shortest_prefix(row, Counting{}, band, static_cast<double>(k));
}

// Makes the k best tokens, 1 <= k <= V, the first k candidates, in any order.
PENSTOCK_INLINE void gather_best(const Row& row, float highest, int64_t k) {
    float low = -kInfinity;
    // k chunks reach the k-th highest maximum, so at least k logits do.
    if (k <= row.chunks()) {
        __builtin_memcpy(row.spare, row.maxima, static_cast<size_t>(row.chunks()) * sizeof(float));
        low = kth_highest(row.spare, row.chunks(), k);
    }
    const int64_t limit = low > -kInfinity ? 4 * k + kSmallTopK : row.vocabulary;
    const int64_t count = gather(row, low, kInfinity, row.candidates, limit);
    if (count <= limit) {
        keep_best(row.candidates, count, k);
        return;
    }
    const Kept kept = best(row, highest, k); // many are equal
    const int64_t above = gather(row, next_above(kept.low), kInfinity, row.candidates, k);
    gather(row, kept.low, next_above(kept.low), row.candidates + above, k - above);
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
