// Adds a number to the logits of listed tokens: for logit bias, and (negated) for the DRY penalty.
// Included by adjust_logits.inl.h.
#pragma once

#include <cstdint>

#include "cpu/isa/isa.h"
#include "penstock/tensor_view.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

constexpr float kLargest = __FLT_MAX__;

// Returns `after`. If `after` overflowed from a finite `before`, returns the largest finite number
// of that sign.
PENSTOCK_INLINE float saturated(float after, float before) {
    const bool was_finite = -kLargest <= before && before <= kLargest;
    if (!was_finite || (-kLargest <= after && after <= kLargest))
        return after;
    return after > 0.0f ? kLargest : -kLargest;
}

// The entries of one row: positions begin..end - 1 of the arrays that `starts` indexes.
struct Span {
    int64_t begin, end;
};

PENSTOCK_INLINE Span span_of(const TensorView& starts, int64_t index) {
    const auto* start = starts.row<int32_t>(0) + index;
    return {start[0], start[1]};
}

PENSTOCK_INLINE void add_logit_bias(float* logits, Span span, const int32_t* tokens,
                                    const float* values, float sign) {
    for (int64_t i = span.begin; i < span.end; ++i) {
        float& x = logits[tokens[i]];
        x = saturated(x + sign * values[i], x);
    }
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
