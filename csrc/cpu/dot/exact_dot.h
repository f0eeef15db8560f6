// Dot for instruction sets whose byte products accumulate in int32 exactly. Included by the
// implementations of int_dot.h that define
//
//   add_products(I32 sum, w, x) -> I32      adds the products of the four bytes of each lane
#pragma once

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct ExactDot {
    static constexpr int kVectors = kPackedTileRows / kLanes;
    static constexpr int kStepWords = 1;
    static constexpr int kCentre = 0;
    using Weight = Words;
    using Sum = I32;

    PENSTOCK_INLINE Weight prepare(const Words& w) { return w; }

    template <int step>
    PENSTOCK_INLINE void mac(Sum& sum, const Weight (&w)[1], const Words (&x)[1]) {
        sum = add_products(step == 0 ? broadcast(int32_t{0}) : sum, w[0], x[0]);
    }

    PENSTOCK_INLINE I32 finish(const Sum& sum) { return sum; }
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
