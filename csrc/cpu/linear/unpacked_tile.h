// An affine packed tile unpacked once for many rows: quants in the form that products use, and
// float32 scales.
#pragma once

#include "cpu/dot/unpacked_dot.h"
#include "cpu/linear/linear_minima.h"
#include "cpu/linear/packed_tile_reader.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// The number of bits for which quants of an encoding are unpacked.
template <Encoding kEncoding>
constexpr int kUnpackedBits = kDotsAlike ? 8 : quant_bits(kEncoding);

// One unit: quants in the words that UnpackedDot<kBits> reads, and the scales and minima of the
// unit's groups.
template <int kBits, int kGroup>
struct UnpackedUnit {
    static constexpr int kGroups = kUnit / kGroup;
    alignas(64) Words quants[kUnit / UnpackedDot<kBits>::kWordValues][kPackedTileVectors];
    alignas(64) float scale[kGroups][kPackedTileRows];
    alignas(64) float minimum[kGroups]
                             [kPackedTileRows]; // unset if none are stored, or if tiles sum them
};

// Returns the bytes of an unpacked tile, which are enough for any group size.
PENSTOCK_INLINE size_t unpacked_tile_bytes(int64_t depth) {
    return static_cast<size_t>(depth / kUnit) * sizeof(UnpackedUnit<8, kUnit / 2>);
}

// Unpacks `units` units at `packed_tile`, the first of which is the first unit of the tile or of a
// super scale. Returns the position of the next unit.
template <Encoding kEncoding, int kBits, int kGroup>
PENSTOCK_INLINE const uint8_t* unpack_tile(const PackedMatrix& part, const uint8_t* packed_tile,
                                           int64_t units, UnpackedUnit<kBits, kGroup>* to) {
    constexpr int kGroups = kUnit / kGroup;
    using Scales = PackedTileScales<kGroups>;
    const ScaleForm form = part.scale_form;
    const bool minimum = part.stored_minimum;
    Scales scales;
    Scales minima;
    for (int64_t unit = 0; unit < units; ++unit, ++to) {
        if (form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
            packed_tile = Scales::read_super(scales, packed_tile);
            if (minimum)
                packed_tile = Scales::read_super(minima, packed_tile);
        }
        packed_tile = Scales::read(scales, form, packed_tile);
        if (minimum)
            packed_tile = Scales::read(minima, form, packed_tile);
        unrolled<kPackedTileVectors>([&](auto p) {
            constexpr int v = decltype(p)::value;
            unrolled<kGroups>([&](auto g) {
                store(to->scale[g.value] + v * kLanes, scales.value[g.value][v]);
                if (minimum && !kMinimaByTiles<kGroup>)
                    store(to->minimum[g.value] + v * kLanes, minima.value[g.value][v]);
            });
            unrolled<kUnit / 4>([&](auto s) {
                using D = UnpackedDot<kBits>;
                constexpr int kWords = 4 / D::kWordValues;
                const Words words =
                    step_words<kEncoding, decltype(s)::value, v>(packed_tile, part.table);
                unrolled<kWords>([&](auto i) {
                    to->quants[s.value * kWords + i.value][v] =
                        D::template unpack<decltype(i)::value>(words, part.zero_point);
                });
            });
        });
        packed_tile += quant_bytes(kEncoding);
    }
    return packed_tile;
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
