// Memory layout of packed weights, which pack.cc writes and the linear and embedding kernels read.
//
// A matrix [N, K] is divided into packed tiles of 16 rows, one row per lane of one or two float
// vectors; the last packed tile is padded with zero rows. A packed tile is one sequential stream
// over K, so that a product reads memory once, forwards.
//
// Affine packed tiles, for each unit of 32 consecutive k (K is a multiple of 32):
//   at every eighth unit, two-level scales only: super scales f16[16], and super minima
//     f16[16] if minima are stored;
//   scales [16] of the first group, and of the second if groups are of 16;
//   minima in the layout of the scales, if stored;
//   quants, as words of 4 bytes per row, a step = 16 words:
//     affine8: 8 steps; byte j of step s is q of k = 4 s + j;
//     affine4: 4 steps; byte j of step s holds k = 8 s + j (low nibble), 8 s + 4 + j (high);
//     affine6: as affine4 for the low 4 bits, then 2 steps for the high 2: bits 2 i and 2 i + 1 of
//       byte j of step h belong to k = 16 h + 4 i + j;
//     table4: as affine4, but each nibble is the index of a q of 8 bits in the table of the matrix;
//     table4_narrow: the same with q of 6 bits.
// Scales and minima are f16, f32, or int8 multipliers of the f16 super values (two-level). They
// always have the exact values of the source, and take little more memory than the source.
//
// Paired scales, for affine4 with f16 scales in groups of 32 and an even number of units, on ISAs
// that multiply them (linear_paired_scales.h): f32 steps [16]; then for every two units scales
// int16[16][2], minima int16[16][2] if stored, and the quants of both. scale = value * step and
// scale * 8 + minimum = value * 8 * step, with values up to +-32767 in each row. The error is at
// most 2^-16 of the row's largest value, far less than the error of rounded activations. Embeddings
// must be exact and are never packed in this form.
//
// Dense packed tiles: element [k][row], f32 or f16; bf16 as [k / 2][row][2], K padded with zeros to
// a multiple of 2, or of 32 on ISAs with bf16 tiles, which read operands in this layout.
//
// dense_i16 approximates f16 and bf16 weights for products: for each group of 64 k, f32 scales
// [16], then int16 [pair][row][2]. Pair i of 32 consecutive k has k = i and k = i + 16. K is padded
// with zeros to a multiple of 32, so that the last group may have 32. A value is the weight times
// 8191 over the largest absolute weight of its row in the group, rounded half to even: the error,
// at most 2^-14 of that weight, is less than f16 activations would cause. A group without a weight
// of at least 2^-100 becomes zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::cpu {

constexpr int kPackedTileRows = 16;
constexpr int kUnit = 32;         // k that share one activation scale
constexpr int kUnitsPerSuper = 8; // units that share one super scale
constexpr int kTableSize = 16;
constexpr int kPairedCentre = 8; // subtracted from quants whose scales are paired

enum class Encoding : uint8_t {
    affine4,
    affine6,
    affine8,
    table4,
    table4_narrow,
    dense_f32,
    dense_f16,
    dense_bf16,
    dense_i16
};
enum class ScaleForm : uint8_t { f16, f32, two_level, paired };

constexpr bool is_affine(Encoding encoding) {
    return encoding <= Encoding::table4_narrow;
}

constexpr bool is_table(Encoding encoding) {
    return encoding == Encoding::table4 || encoding == Encoding::table4_narrow;
}

// Returns the bits of a q of an affine encoding.
constexpr int quant_bits(Encoding encoding) {
    switch (encoding) {
    case Encoding::affine4: return 4;
    case Encoding::affine6:
    case Encoding::table4_narrow: return 6;
    default: return 8;
    }
}

// Returns the bytes of the quants of one unit of an affine packed tile.
constexpr int64_t quant_bytes(Encoding encoding) {
    const int stored = is_table(encoding) ? 4 : quant_bits(encoding);
    return kUnit * kPackedTileRows * stored / 8;
}

// One packed matrix. Its PackedLinear owns the memory.
struct PackedMatrix {
    uint8_t* data = nullptr; // 64-byte aligned
    int64_t packed_tile_bytes = 0;
    int64_t packed_tiles = 0;
    int64_t rows = 0;   // N of this matrix
    int64_t column = 0; // first output column of this matrix
    Encoding encoding = Encoding::affine8;
    ScaleForm scale_form = ScaleForm::f16;
    // If false, minimum = -zero_point * scale. With paired scales, the minimum of q - 8.
    bool stored_minimum = false;
    int32_t group = kUnit;
    int32_t zero_point = 0;
    alignas(16) uint8_t table[kTableSize] = {}; // the q of each index, if is_table(encoding)
};

// A whole linear layer: matrices that share their input. Arguments::object points to a
// LinearWeights.
struct LinearWeights {
    const PackedMatrix* parts = nullptr;
    int32_t num_parts = 0;
    int64_t rows = 0;            // sum N = output columns
    int64_t depth = 0;           // K
    const float* bias = nullptr; // [rows] or null
    // Bytes of an activation row in all formats that the dense parts multiply (RoundedRow); 0 if
    // they multiply float32.
    int64_t rounded_row_bytes = 0;
};

// One unit of a quantized activation row: 32 int8 values, x = scale * value.
//
// A row is QuantizedUnit[K / 32], padded to a multiple of 64 bytes. On ISAs with tiles, the units'
// scaled sums follow in bf16, [K / 32 padded with zeros to a multiple of 32]: first the nearest
// bf16 values of all units, then the bf16 values of the remainders. On ISAs with paired scales,
// PairedRowUnits follow instead.
struct QuantizedUnit {
    int8_t value[kUnit];
    float scale;
    float scaled_sum; // scale * float(sum of the 32 values)
    int16_t sum[2];   // of the first and of the second 16 values
    int32_t centre;   // -kPairedCentre times the sum of the 32 values
};
static_assert(sizeof(QuantizedUnit) == 48);

// Scales and scaled sums of two units, for products with paired scales. The scale of a unit is
// value * step / 2^15; its scaled sum is value * step / 8.
struct PairedUnits {
    int16_t scale[2]; // at most kPairedLargest
    int16_t sum[2];
};
constexpr float kPairedLargest = 16383.0f;

// Header of the paired units of a row; PairedUnits[K / 64] follow.
struct PairedRowUnits {
    float step;
    int32_t padding;

    const PairedUnits* pairs() const { return reinterpret_cast<const PairedUnits*>(this + 1); }
    PairedUnits* pairs() { return reinterpret_cast<PairedUnits*>(this + 1); }
};

constexpr int64_t kSumStep = 32; // units per product of scaled sums

constexpr int64_t sum_steps(int64_t depth) {
    return (depth / kUnit + kSumStep - 1) / kSumStep;
}

constexpr int64_t quantized_units_bytes(int64_t depth) {
    return (depth / kUnit * static_cast<int64_t>(sizeof(QuantizedUnit)) + 63) / 64 * 64;
}

// Bytes of the PairedRowUnits header. The PairedUnits that follow fit into the bytes that ISAs with
// tiles use for sums.
constexpr int64_t kPairedHeadBytes = 64;
static_assert(sizeof(PairedRowUnits) <= kPairedHeadBytes);

constexpr int64_t quantized_row_bytes(int64_t depth) {
    return quantized_units_bytes(depth) +
           2 * sum_steps(depth) * kSumStep * static_cast<int64_t>(sizeof(uint16_t)) +
           kPairedHeadBytes;
}

inline const PairedRowUnits* paired_units(const uint8_t* row, int64_t depth) {
    return reinterpret_cast<const PairedRowUnits*>(row + quantized_units_bytes(depth));
}

constexpr int64_t kFixedGroup = 64; // k that share a scale of int16 weights or activations
// The largest int16 of a weight and of an activation. A group's product fits int32.
constexpr float kLargestFixedWeight = 8191.0f;
constexpr float kLargestFixedActivation = 4095.0f;
// A group whose largest number is below this becomes zeros, so that no scale overflows.
constexpr float kLeastFixedGroup = 0x1p-100f;
static_assert(int64_t{8191} * 4095 * kFixedGroup <= INT32_MAX);

constexpr int64_t whole_units(int64_t depth) {
    return (depth + kUnit - 1) / kUnit * kUnit;
}

constexpr int64_t fixed_groups(int64_t depth) {
    return (depth + kFixedGroup - 1) / kFixedGroup;
}

constexpr int64_t whole_lines(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

// Returns the bytes of an activation row rounded to bf16: whole vectors, and one cache line more,
// which spreads rows over the cache sets.
constexpr int64_t bf16_row_bytes(int64_t depth) {
    return whole_units(depth) * static_cast<int64_t>(sizeof(uint16_t)) + 64;
}

// Returns the bytes that precede the scales of an activation row in int16.
constexpr int64_t fixed_scales_offset(int64_t depth) {
    return whole_lines(whole_units(depth) * static_cast<int64_t>(sizeof(int16_t)));
}

// Returns the bytes of an activation row in int16, with an f32 scale per group, and one cache line
// more.
constexpr int64_t fixed_row_bytes(int64_t depth) {
    return fixed_scales_offset(depth) + whole_lines(4 * fixed_groups(depth)) + 64;
}

constexpr int64_t scale_bytes(ScaleForm form) {
    return form == ScaleForm::f32 ? 4 : form == ScaleForm::two_level ? 1 : 2;
}

// Returns the bytes of one unit of an affine packed tile, without the super values.
constexpr int64_t unit_bytes(const PackedMatrix& part) {
    const int64_t groups = kUnit / part.group;
    return quant_bytes(part.encoding) +
           kPackedTileRows * groups * scale_bytes(part.scale_form) * (part.stored_minimum ? 2 : 1);
}

// Returns the bytes that precede the first unit of a packed tile.
constexpr int64_t head_bytes(const PackedMatrix& part) {
    return part.scale_form == ScaleForm::paired ? 4 * kPackedTileRows : 0;
}

// Returns the bytes of the super values that precede every eighth unit.
constexpr int64_t super_bytes(const PackedMatrix& part) {
    if (part.scale_form != ScaleForm::two_level)
        return 0;
    return kPackedTileRows * (part.stored_minimum ? 4 : 2);
}

} // namespace penstock::cpu
