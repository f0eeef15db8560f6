// Top-p (nucleus) truncation of a row. Included by sampling.inl.h.
#pragma once

#include "cpu/sampling/sampling_pivots.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

// The best token's weight is 1, so a total mass below this means that few tokens hold most of the
// mass.
constexpr double kPeakedMass = 64.0;

// Returns the shortest prefix whose mass reaches `wanted`. Weights have been computed for logits
// from `low` on, and `all` is their total.
PENSTOCK_INLINE Kept nucleus(const Row& row, Scale scale, float low, double all, double wanted) {
    LogitInterval interval{low, next_above(scale.highest), 0.0, all};
    if (all < kPeakedMass && row.vocabulary > kFew) {
        // A sample would miss the few heavy tokens: pivots at fixed weights find them in one pass.
        const float pivots[kPivots] = {scale.logit(-2.0f), scale.logit(-5.0f), scale.logit(-9.0f),
                                       scale.logit(-14.0f)};
        interval.narrow(row, MassMeasure{}, pivots, wanted);
    }
    return shortest_prefix(row, MassMeasure{}, interval, wanted);
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
