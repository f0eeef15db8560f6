// Loops whose counters are compile-time constants.
#pragma once

#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

template <int i>
struct Index {
    static constexpr int value = i;
};

// Calls f(Index<0>), ..., f(Index<count - 1>), unrolled.
template <int count, int i = 0, class Function>
PENSTOCK_INLINE void unrolled(const Function& f) {
    if constexpr (i < count) {
        f(Index<i>{});
        unrolled<count, i + 1>(f);
    }
}

// Zeroes accumulators in registers. GCC would first write a large array initialized with `= {}` to
// memory, which costs a few dozen cycles per block of a product.
template <int rows, int columns>
PENSTOCK_INLINE void set_zero(F32 (&sums)[rows][columns]) {
    unrolled<rows * columns>([&](auto i) {
        sums[decltype(i)::value / columns][decltype(i)::value % columns] = broadcast(0.0f);
    });
}

// Calls f(Index<count>) for a `count` from 1 to `most` that is known only at run time.
template <int most, class Function>
PENSTOCK_INLINE void with_count(int64_t count, const Function& f) {
    if constexpr (most > 1) {
        if (count < most)
            return with_count<most - 1>(count, f);
    }
    f(Index<most>{});
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
