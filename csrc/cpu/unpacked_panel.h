// An affine panel unpacked to what products multiply and float32 scales, once for many rows.
// Included by the products that use it.
#pragma once

#include "cpu/linear_minima.h"
#include "cpu/panel_reader.h"
#include "cpu/unpacked_dot.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

// Of the quants of an encoding that are unpacked.
template <Encoding kEncoding>
constexpr int kUnpackedBits = kDotsAlike ? 8 : quant_bits(kEncoding);

// A unit: quants in words as UnpackedDot<kBits> takes them; scales and minima of its groups.
template <int kBits, int kGroup>
struct UnpackedUnit {
    static constexpr int kGroups = kUnit / kGroup;
    alignas(64) Words quants[kUnit / UnpackedDot<kBits>::kWordValues][kPanelVectors];
    alignas(64) float scale[kGroups][kPanelRows];
    alignas(64) float minimum[kGroups][kPanelRows]; // unset where there are none, or tiles sum them
};

// Of a panel of any group.
PENSTOCK_INLINE size_t unpacked_panel_bytes(int64_t depth) {
    return static_cast<size_t>(depth / kUnit) * sizeof(UnpackedUnit<8, kUnit / 2>);
}

// Unpacks `units` units that lie at `panel`, the first of all or of a super scale. Returns where
// the next ones lie.
template <Encoding kEncoding, int kBits, int kGroup>
PENSTOCK_INLINE const uint8_t* unpack_panel(const PanelPart& part, const uint8_t* panel,
                                            int64_t units, UnpackedUnit<kBits, kGroup>* to) {
    constexpr int kGroups = kUnit / kGroup;
    using Scales = PanelScales<kGroups>;
    const ScaleForm form = part.scale_form;
    const bool minimum = part.stored_minimum;
    Scales scales;
    Scales minima;
    for (int64_t unit = 0; unit < units; ++unit, ++to) {
        if (form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
            panel = Scales::read_super(scales, panel);
            if (minimum)
                panel = Scales::read_super(minima, panel);
        }
        panel = Scales::read(scales, form, panel);
        if (minimum)
            panel = Scales::read(minima, form, panel);
        unrolled<kPanelVectors>([&](auto p) {
            constexpr int v = decltype(p)::value;
            unrolled<kGroups>([&](auto g) {
                store(to->scale[g.value] + v * kLanes, scales.value[g.value][v]);
                if (minimum && !kMinimaByTiles<kGroup>)
                    store(to->minimum[g.value] + v * kLanes, minima.value[g.value][v]);
            });
            unrolled<kUnit / 4>([&](auto s) {
                using D = UnpackedDot<kBits>;
                constexpr int kWords = 4 / D::kWordValues;
                const Words words = step_words<kEncoding, decltype(s)::value, v>(panel);
                unrolled<kWords>([&](auto i) {
                    to->quants[s.value * kWords + i.value][v] =
                        D::template unpack<decltype(i)::value>(words, part.zero_point);
                });
            });
        });
        panel += quant_bytes(kEncoding);
    }
    return panel;
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
