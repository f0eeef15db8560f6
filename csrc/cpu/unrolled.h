// Loops whose counter is known when compiled.
#pragma once

#include "cpu/simd.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

template <int i>
struct Index {
    static constexpr int value = i;
};

// f(Index<0>), ..., f(Index<count - 1>), unrolled.
template <int count, int i = 0, class Function>
PENSTOCK_INLINE void unrolled(const Function& f) {
    if constexpr (i < count) {
        f(Index<i>{});
        unrolled<count, i + 1>(f);
    }
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
