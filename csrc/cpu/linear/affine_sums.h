// Sums of activations that all products of affine weights need. Included by linear_affine.inl.h.
// `Unit` is QuantizedUnit or a type with the same scale and sums.
#pragma once

#include "cpu/dot/int_dot.h"
#include "cpu/pack/packed_tile.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Returns the scaled sum of a group's values, by which the group's minimum is multiplied.
template <int kGroup, int group, class Unit>
PENSTOCK_INLINE float scaled_sum(const Unit& unit) {
    return kGroup == kUnit ? unit.scaled_sum : unit.scale * static_cast<float>(unit.sum[group]);
}

// Returns the sum of a group's values times `factor`, in every lane.
template <int kGroup, int group, class Unit>
PENSTOCK_INLINE I32 zero_sums(const Unit& unit, int32_t factor) {
    constexpr bool kWhole = kGroup == kUnit;
    return sums_times(unit.sum, kWhole || group == 0 ? factor : 0,
                      kWhole || group == 1 ? factor : 0);
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
