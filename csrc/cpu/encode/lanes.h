// Four floats, each of another group of weights, so that a search over scales runs for four groups
// at once and never adds across a vector: results do not depend on the instruction set.
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstdint>

#include "cpu/simd/half.h"

namespace penstock::cpu::encode {

constexpr int LANES = 4;

typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t LaneMask __attribute__((vector_size(4 * LANES)));

PENSTOCK_INLINE Lanes splat(float value) {
    return Lanes{value, value, value, value};
}
PENSTOCK_INLINE Lanes select(LaneMask mask, Lanes yes, Lanes no) {
    return mask ? yes : no;
}

// Compilers do not recognize a minimum in a choice between vectors.
#ifdef __SSE2__
PENSTOCK_INLINE Lanes smaller(Lanes a, Lanes b) {
    return _mm_min_ps(a, b);
}
PENSTOCK_INLINE Lanes larger(Lanes a, Lanes b) {
    return _mm_max_ps(a, b);
}
#else
PENSTOCK_INLINE Lanes smaller(Lanes a, Lanes b) {
    return a < b ? a : b;
}
PENSTOCK_INLINE Lanes larger(Lanes a, Lanes b) {
    return a > b ? a : b;
}
#endif

PENSTOCK_INLINE Lanes magnitude(Lanes a) {
    return larger(a, -a);
}

// Rounds half to even; |a| must be below 2^22.
PENSTOCK_INLINE Lanes rounded(Lanes a) {
    const Lanes shift = splat(12582912.0f);
    return (a + shift) - shift;
}

PENSTOCK_INLINE Lanes clamped(Lanes a, float low, float high) {
    return smaller(larger(a, splat(low)), splat(high));
}

// Returns a / b, or 0 if b is 0.
PENSTOCK_INLINE Lanes quotient(Lanes a, Lanes b) {
    const LaneMask zero = b == splat(0);
    return select(zero, splat(0), a / select(zero, splat(1), b));
}

PENSTOCK_INLINE float lane_sum(Lanes a) {
    return (a[0] + a[1]) + (a[2] + a[3]);
}

// Four groups of `G` weights: element k of each, and its weight in the error.
template <int G>
struct Groups {
    Lanes x[G];
    Lanes w[G];
};

} // namespace penstock::cpu::encode
