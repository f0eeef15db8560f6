// What simd.h is extended by: tails and an elementary function. Included by kernel families.
#pragma once

#include "cpu/simd.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

// How many of kLanes elements from i lie before `end`.
PENSTOCK_INLINE int lanes_from(int64_t i, int64_t end) {
    return end - i < kLanes ? static_cast<int>(end - i) : kLanes;
}

// The first n lanes, zeros after; store touches only n elements. Masked moves take tens of cycles
// on some CPUs, so whole vectors go round them.
PENSTOCK_INLINE F32 load_lanes(const float* p, int n) {
    return n == kLanes ? load(p) : load(p, n);
}
PENSTOCK_INLINE void store_lanes(float* p, F32 a, int n) {
    n == kLanes ? store(p, a) : store(p, a, n);
}

// 2^x for x <= 0.5: relative error below 1.5 ulp, 1 at 0, exactly 0 below -126.5 (with -inf), NaN
// stays NaN. Made for softmax, where x is a score less the highest one.
PENSTOCK_INLINE F32 exp2_nonpositive(F32 x) {
    // At n = -127 the exponent bits are those of 0, so that the product is 0 without a compare.
    const F32 clamped = max(broadcast(-127.0f), x);
    const F32 n = round_even(clamped);
    const F32 f = clamped - n;
    F32 p = broadcast(1.3264719e-3f);
    p = fma(p, f, broadcast(9.671514e-3f));
    p = fma(p, f, broadcast(5.550734e-2f));
    p = fma(p, f, broadcast(2.4022242e-1f));
    p = fma(p, f, broadcast(6.93147e-1f));
    p = fma(p, f, broadcast(1.0f));
    return p * as_float(shift_left<23>(to_int(n) + broadcast(int32_t{127})));
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
