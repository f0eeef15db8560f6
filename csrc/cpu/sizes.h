// Quotients and remainders of sizes, which are not negative. Sizes nearly always fit 32 bits, and
// Intel processors before Ice Lake divide 32 bits in about 25 cycles, but 64 bits in 40 to 90.
#pragma once

#include <cstdint>

#include "cpu/simd/half.h"

namespace penstock::cpu {

PENSTOCK_INLINE bool both_short(int64_t a, int64_t b) {
    return (static_cast<uint64_t>(a | b) >> 32) == 0;
}

PENSTOCK_INLINE int64_t quotient(int64_t a, int64_t b) {
    return both_short(a, b) ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

PENSTOCK_INLINE int64_t remainder(int64_t a, int64_t b) {
    return both_short(a, b) ? static_cast<uint32_t>(a) % static_cast<uint32_t>(b) : a % b;
}

PENSTOCK_INLINE int64_t ceil_div(int64_t a, int64_t b) {
    return quotient(a + b - 1, b);
}

} // namespace penstock::cpu
