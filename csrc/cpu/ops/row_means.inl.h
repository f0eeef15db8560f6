// The mean of a function of the elements of a row. Included by the ISA files.
#pragma once

#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Returns the mean of term(x), a function of lanes, over a row. The lanes after the row do not
// count. There are 4 * kLanes partial sums, folded in a fixed order.
template <class Term>
PENSTOCK_INLINE float mean_of(const float* x, int64_t width, const Term& term) {
    F32 partial[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
        for (int k = 0; k < 4; ++k)
            partial[k] = partial[k] + term(load(x + i + k * kLanes));
    }
    for (; i < width; i += kLanes) {
        const int n = lanes_from(i, width);
        partial[0] = partial[0] + select(first(n), term(load_lanes(x + i, n)), broadcast(0.0f));
    }
    const F32 total = (partial[0] + partial[1]) + (partial[2] + partial[3]);
    return reduce_add(total) / static_cast<float>(width);
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
