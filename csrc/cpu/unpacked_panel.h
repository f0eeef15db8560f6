// An affine panel unpacked to bytes and float32 scales, once for many rows. Included by the
// products that use it, at levels whose vectors are as wide as a panel.
#pragma once

#include "cpu/linear_minima.h"
#include "cpu/panel_reader.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

// A unit: quants in words of 4 k, as products take them; scales and minima of its groups.
template <int kGroup>
struct UnpackedUnit {
    static constexpr int kGroups = kUnit / kGroup;
    alignas(64) uint8_t quants[kUnit / 4][4 * kPanelRows];
    alignas(64) float scale[kGroups][kPanelRows];
    alignas(64) float minimum[kGroups][kPanelRows]; // unset where there are none, or tiles sum them
};

// Of a panel of any group.
PENSTOCK_INLINE size_t unpacked_panel_bytes(int64_t depth) {
    return static_cast<size_t>(depth / kUnit) * sizeof(UnpackedUnit<kUnit / 2>);
}

PENSTOCK_INLINE void store_words(uint8_t* to, const Words& words) {
    std::memcpy(to, &words, sizeof words);
}

// Unpacks `units` units that lie at `panel`, the first of all or of a super scale. Returns where
// the next ones lie.
template <Encoding kEncoding, int kGroup>
PENSTOCK_INLINE const uint8_t* unpack_panel(const PanelPart& part, const uint8_t* panel,
                                            int64_t units, UnpackedUnit<kGroup>* to) {
    static_assert(kGroup > 0 && kPanelVectors == 1);
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
        unrolled<kGroups>([&](auto g) {
            store(to->scale[g.value], scales.value[g.value][0]);
            if (minimum && !kMinimaByTiles<kGroup>)
                store(to->minimum[g.value], minima.value[g.value][0]);
        });
        unrolled<kUnit / 4>([&](auto s) {
            store_words(to->quants[s.value], step_words<kEncoding, decltype(s)::value, 0>(panel));
        });
        panel += quant_bytes(kEncoding);
    }
    return panel;
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
