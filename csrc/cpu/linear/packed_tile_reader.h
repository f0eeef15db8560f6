// Reads affine packed tiles unit by unit, as the vectors and words that products use. Included by
// linear_affine.inl.h.
#pragma once

#include "cpu/dot/int_dot.h"
#include "cpu/linear/linear_partition.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Operands of the tasks of one product.
struct AffineOperands {
    const LinearWeights* linear;
    const uint8_t* x;
    int64_t x_stride; // in bytes
    float* out;
    int64_t out_stride; // in floats
};

constexpr int kQuantStepBytes = 4 * kPackedTileRows;

// Returns the words that hold 4 k of 4 bits, for the rows of vector `p` of a packed tile.
template <int step, int p>
PENSTOCK_INLINE Words nibble_words(const uint8_t* quants) {
    const Words pair = load_words(quants + 4 * kLanes * p + step / 2 * kQuantStepBytes);
    return step % 2 == 0 ? low_nibbles(pair) : high_nibbles(pair);
}

// Returns the words that hold the 4 k of a step, for the rows of vector `p` of a packed tile.
// `table`: that of the matrix.
template <Encoding kEncoding, int step, int p>
PENSTOCK_INLINE Words step_words(const uint8_t* quants, const uint8_t (&table)[kTableSize]) {
    const uint8_t* rows = quants + 4 * kLanes * p;
    if constexpr (kEncoding == Encoding::affine8) {
        return load_words(rows + step * kQuantStepBytes);
    } else if constexpr (kEncoding == Encoding::affine4) {
        return nibble_words<step, p>(quants);
    } else if constexpr (is_table(kEncoding)) {
        return table_lookup(table, nibble_words<step, p>(quants));
    } else {
        const Words top = load_words(rows + (4 + step / 4) * kQuantStepBytes);
        return join(nibble_words<step, p>(quants), two_bits<step % 4>(top));
    }
}

// Returns kLanes scales or minima of a packed tile.
PENSTOCK_INLINE F32 load_values(const uint8_t* from, ScaleForm form, const F32& super) {
    switch (form) {
    case ScaleForm::f16: return load_f16(reinterpret_cast<const uint16_t*>(from));
    case ScaleForm::f32: return load(reinterpret_cast<const float*>(from));
    case ScaleForm::two_level:
    case ScaleForm::paired: break; // see linear_paired_scales.h
    }
    return to_float(load_i8(reinterpret_cast<const int8_t*>(from))) * super;
}

// The scales or the minima of a packed tile, read unit by unit.
template <int kGroups>
struct PackedTileScales {
    F32 super[kPackedTileVectors] = {};
    F32 value[kGroups][kPackedTileVectors] = {};

    // read_super and read return the position after the bytes that they read.
    PENSTOCK_INLINE const uint8_t* read_super(PackedTileScales& scales, const uint8_t* from) {
        unrolled<kPackedTileVectors>([&](auto p) {
            scales.super[p.value] =
                load_f16(reinterpret_cast<const uint16_t*>(from) + p.value * kLanes);
        });
        return from + 2 * kPackedTileRows;
    }
    PENSTOCK_INLINE const uint8_t* read(PackedTileScales& scales, ScaleForm form,
                                        const uint8_t* from) {
        const int64_t bytes = scale_bytes(form);
        unrolled<kGroups>([&](auto g) {
            unrolled<kPackedTileVectors>([&](auto p) {
                scales.value[g.value][p.value] =
                    load_values(from + (g.value * kPackedTileRows + p.value * kLanes) * bytes, form,
                                scales.super[p.value]);
            });
        });
        return from + kGroups * kPackedTileRows * bytes;
    }
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
