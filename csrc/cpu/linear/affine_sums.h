// What every product of integer weights does with the sums of an activation's values. Included by
// linear_affine.inl.h. A unit is a QuantizedUnit, or what else has its scale and sums.
#pragma once

#include "cpu/dot/int_dot.h"
#include "cpu/pack/packed_tile.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// What the values of a group add to a product for each unit of minimum.
template <int kGroup, int group, class Unit>
PENSTOCK_INLINE float scaled_sum(const Unit& unit) {
    return kGroup == kUnit ? unit.scaled_sum : unit.scale * static_cast<float>(unit.sum[group]);
}

// The sum of the values of a group, times `factor`.
template <int kGroup, int group, class Unit>
PENSTOCK_INLINE I32 zero_sums(const Unit& unit, int32_t factor) {
    constexpr bool kWhole = kGroup == kUnit;
    return sums_times(unit.sum, kWhole || group == 0 ? factor : 0,
                      kWhole || group == 1 ? factor : 0);
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
