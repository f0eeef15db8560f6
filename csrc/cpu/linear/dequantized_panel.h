// Packed tiles of integer weights brought to bf16, as right operands of matrix tiles. Included by
// linear_prompt.inl.h.
//
// A weight becomes bf16(fma(q - zero_point, scale, minimum)), rounded half to even; the minimum is
// 0 if none is stored. With paired scales it becomes bf16(fma(q - 8, scale, minimum of q - 8)).
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/linear/packed_tile_reader.h"
#include "cpu/simd/matrix_tiles.h"
#include "cpu/simd/unrolled.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// The packed tiles of a panel, whose products share each load of activations.
constexpr int kPanelTiles = 2;

// One unit of a panel: for each packed tile a right tile operand, [pair of k][row][2].
struct PanelUnit {
    alignas(64) uint16_t tile[kPanelTiles][kUnit / 2][2 * kPackedTileRows];
};

#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)

// Returns q - zero for one of the 4 k of `words`. An integer below 2^23 in the low bits of 2^23 is
// 2^23 plus that integer, so that no conversion is needed. `offset`: 2^23 + zero.
template <int i>
PENSTOCK_INLINE F32 centred_quant(const Words& words, F32 offset) {
    return as_float(byte_of<i>(words) | broadcast(int32_t{0x4b000000})) - offset;
}

// Dequantizes the quants of a unit. `scales`, `minima`: of the unit's groups.
template <Encoding kEncoding, int kGroups>
PENSTOCK_INLINE void dequantize_unit(const PackedMatrix& part, const uint8_t* quants, int32_t zero,
                                     const F32 (&scales)[kGroups], const F32 (&minima)[kGroups],
                                     uint16_t (&to)[kUnit / 2][2 * kPackedTileRows]) {
    const F32 offset = broadcast(8388608.0f + static_cast<float>(zero));
    unrolled<kUnit / 4>([&](auto s) {
        constexpr int step = decltype(s)::value;
        constexpr int g = 4 * step * kGroups / kUnit;
        const Words words = step_words<kEncoding, step, 0>(quants, part.table);
        unrolled<2>([&](auto h) {
            constexpr int i = 2 * decltype(h)::value;
            const F32 first = fma(centred_quant<i>(words, offset), scales[g], minima[g]);
            const F32 second = fma(centred_quant<i + 1>(words, offset), scales[g], minima[g]);
            store_bf16_pairs(to[2 * step + i / 2], interleaved_bf16(first, second));
        });
    });
}

// Dequantizes `units` units at `at` to tile `which` of a panel. Returns the position of the next
// unit. The first unit is the first of the packed tile or of a super scale.
using Dequantize = const uint8_t*(const PackedMatrix& part, const uint8_t* packed_tile,
                                  const uint8_t* at, int64_t units, PanelUnit* panel, int which);

template <Encoding kEncoding, int kGroup>
const uint8_t* dequantize(const PackedMatrix& part, const uint8_t*, const uint8_t* at,
                          int64_t units, PanelUnit* panel, int which) {
    constexpr int kGroups = kUnit / kGroup;
    using Scales = PackedTileScales<kGroups>;
    const ScaleForm form = part.scale_form;
    const bool minimum = part.stored_minimum;
    const int32_t zero = minimum ? 0 : part.zero_point;
    Scales scales;
    Scales minima;
    for (int64_t unit = 0; unit < units; ++unit) {
        if (form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
            at = Scales::read_super(scales, at);
            if (minimum)
                at = Scales::read_super(minima, at);
        }
        at = Scales::read(scales, form, at);
        if (minimum)
            at = Scales::read(minima, form, at);
        F32 scale[kGroups], least[kGroups];
        unrolled<kGroups>([&](auto g) {
            scale[g.value] = scales.value[g.value][0];
            least[g.value] = minima.value[g.value][0];
        });
        dequantize_unit<kEncoding>(part, at, zero, scale, least, panel[unit].tile[which]);
        at += quant_bytes(kEncoding);
    }
    return at;
}

// Returns number `i` of each pair of int16 at `from`, as floats.
template <int i>
PENSTOCK_INLINE F32 paired_values(const int16_t* from) {
    const I32 pairs = load(reinterpret_cast<const int32_t*>(from));
    const F32 high = to_float(pairs & broadcast(int32_t{-65536}));
    if constexpr (i == 1)
        return high * broadcast(0x1p-16f);
    return to_float(shift_left<16>(pairs)) * broadcast(0x1p-16f);
}

// Does the same for paired scales.
inline const uint8_t* dequantize_paired(const PackedMatrix& part, const uint8_t* packed_tile,
                                        const uint8_t* at, int64_t units, PanelUnit* panel,
                                        int which) {
    constexpr int64_t kPairBytes = 2 * kPackedTileRows * sizeof(int16_t);
    const F32 step = load(reinterpret_cast<const float*>(packed_tile));
    const F32 minimum_step = step * broadcast(float{kPairedCentre});
    for (int64_t unit = 0; unit < units; unit += 2) {
        const auto* scales = reinterpret_cast<const int16_t*>(at);
        at += (part.stored_minimum ? 2 : 1) * kPairBytes;
        unrolled<2>([&](auto i) {
            constexpr int kPlace = decltype(i)::value;
            const F32 scale[] = {paired_values<kPlace>(scales) * step};
            F32 minimum[] = {broadcast(0.0f)};
            if (part.stored_minimum)
                minimum[0] = paired_values<kPlace>(scales + 2 * kPackedTileRows) * minimum_step;
            dequantize_unit<Encoding::affine4>(part, at, kPairedCentre, scale, minimum,
                                               panel[unit + kPlace].tile[which]);
            at += quant_bytes(Encoding::affine4);
        });
    }
    return at;
}

template <Encoding kEncoding>
PENSTOCK_INLINE Dequantize* dequantize_groups(const PackedMatrix& part) {
    return part.group == kUnit ? dequantize<kEncoding, kUnit> : dequantize<kEncoding, kUnit / 2>;
}

PENSTOCK_INLINE Dequantize* dequantize_of(const PackedMatrix& part) {
    if (part.scale_form == ScaleForm::paired)
        return dequantize_paired;
    switch (part.encoding) {
    case Encoding::affine4: return dequantize_groups<Encoding::affine4>(part);
    case Encoding::affine6: return dequantize_groups<Encoding::affine6>(part);
    case Encoding::table4:
    case Encoding::table4_narrow: return dequantize_groups<Encoding::table4>(part);
    default: return dequantize_groups<Encoding::affine8>(part);
    }
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
