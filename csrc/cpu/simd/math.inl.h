// Loads and stores of partial vectors, and elementary functions, on top of simd.h. Included by
// kernel families.
#pragma once

#include "cpu/simd/interleaved.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Returns how many of the kLanes elements from i on are before `end`.
PENSTOCK_INLINE int lanes_from(int64_t i, int64_t end) {
    return end - i < kLanes ? static_cast<int>(end - i) : kLanes;
}

// Load or store the first n lanes: a load sets the other lanes to zero, a store writes only n
// elements. Masked moves take tens of cycles on some CPUs, so whole vectors are moved without a
// mask.
PENSTOCK_INLINE F32 load_lanes(const float* p, int n) {
    return n == kLanes ? load(p) : load(p, n);
}
PENSTOCK_INLINE void store_lanes(float* p, F32 a, int n) {
    n == kLanes ? store(p, a) : store(p, a, n);
}

// Returns e^x with an error below 2 ulp; 0 below -87.3, saturates above 88. `Vector`: F32 or
// Interleaved.
template <class Vector>
PENSTOCK_INLINE Vector exp(Vector x) {
    const F32 low = broadcast(-87.3365f);
    // The constant is the first operand so that NaN propagates.
    const Vector clamped = min(broadcast(88.0f), max(low, x));
    const Vector n = round_even(clamped * broadcast(1.44269504088896341f));
    Vector r = fnma(n, broadcast(0.693145751953125f), clamped);
    r = fnma(n, broadcast(1.42860682030941723e-6f), r);
    Vector p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r) + broadcast(1.0f);
    return select_less(x, low, broadcast(0.0f), p * power_of_two(n));
}

// Returns 2^x for x <= 0.5: relative error below 1.5 ulp, 1 at 0, exactly 0 below -126.5 (including
// -inf); NaN stays NaN. Used by softmax, in which x is a score minus the maximum.
PENSTOCK_INLINE F32 exp2_nonpositive(F32 x) {
    // At n = -127 the exponent bits are those of 0, so that the product is 0 without a comparison.
    const F32 clamped = max(broadcast(-127.0f), x);
    const F32 n = round_even(clamped);
    const F32 f = clamped - n;
    F32 p = broadcast(1.3264719e-3f);
    p = fma(p, f, broadcast(9.671514e-3f));
    p = fma(p, f, broadcast(5.550734e-2f));
    p = fma(p, f, broadcast(2.4022242e-1f));
    p = fma(p, f, broadcast(6.93147e-1f));
    p = fma(p, f, broadcast(1.0f));
    return p * power_of_two(n);
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
