#include "cpu/pack/pack_tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/simd/half.h"

namespace penstock::cpu {
namespace {

constexpr int64_t kStepBytes = 4 * kPackedTileRows;
constexpr int64_t kSuper = kUnit * kUnitsPerSuper;

// The rows of one packed tile, of which `count` exist in the source.
struct Rows {
    int64_t first;
    int64_t count;
};

uint32_t load_word(const uint8_t* from) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    return word;
}

void store_word(uint8_t* to, uint32_t word) {
    std::memcpy(to, &word, 4);
}

// Reorders nibbles k0 .. k7 (lowest first) to k0 k4 k1 k5 k2 k6 k3 k7.
uint32_t interleave_nibbles(uint32_t word) {
    word = (word & 0xff0000ffu) | ((word & 0x00ff0000u) >> 8) | ((word & 0x0000ff00u) << 8);
    return (word & 0xf00ff00fu) | ((word & 0x0f000f00u) >> 4) | ((word & 0x00f000f0u) << 4);
}

// One struct per encoding, which packs one unit of one row. `to` points to the row's word of the
// first step.
struct Affine4 {
    static constexpr int64_t kSourceBytes = 16;
    static void pack(const uint8_t* row, uint8_t* to) {
        for (int step = 0; step < 4; ++step) {
            store_word(to + step * kStepBytes, interleave_nibbles(load_word(row + 4 * step)));
        }
    }
};

struct Affine6 {
    static constexpr int64_t kSourceBytes = 32;
    static void pack(const uint8_t* row, uint8_t* to) {
        for (int step = 0; step < 4; ++step) {
            const uint32_t low = load_word(row + 8 * step) & 0x0f0f0f0fu;
            const uint32_t high = load_word(row + 8 * step + 4) & 0x0f0f0f0fu;
            store_word(to + step * kStepBytes, low | (high << 4));
        }
        for (int half = 0; half < 2; ++half) {
            uint32_t top = 0;
            for (int i = 0; i < 4; ++i) {
                top |= ((load_word(row + 16 * half + 4 * i) >> 4) & 0x03030303u) << (2 * i);
            }
            store_word(to + (4 + half) * kStepBytes, top);
        }
    }
};

struct Tabled {
    static constexpr int64_t kSourceBytes = 32;
    std::array<uint8_t, 256> place{}; // index in the table of each q that the matrix has

    // A table of few bits holds the q less as much as the zero point of the part is lower.
    Tabled(const MatrixSource& source, const PackedMatrix& part) {
        const int32_t subtracted = source.zero_point - part.zero_point;
        for (int i = 0; i < kTableSize; ++i)
            place[static_cast<size_t>(part.table[i] + subtracted)] = static_cast<uint8_t>(i);
    }

    void pack(const uint8_t* row, uint8_t* to) const {
        for (int step = 0; step < 4; ++step) {
            for (int j = 0; j < 4; ++j) {
                const uint8_t* pair = row + 8 * step + j;
                to[step * kStepBytes + j] =
                    static_cast<uint8_t>(place[pair[0]] | place[pair[4]] << 4);
            }
        }
    }
};

struct Affine8 {
    static constexpr int64_t kSourceBytes = 32;
    static void pack(const uint8_t* row, uint8_t* to) {
        for (int step = 0; step < 8; ++step) {
            store_word(to + step * kStepBytes, load_word(row + 4 * step));
        }
    }
};

// One array of scales or minima: each row has `groups` values and `supers` super values.
struct Values {
    const void* values;
    DType type;
    const uint16_t* super;
    int64_t group; // number of k that share a value
    int64_t groups;
    int64_t supers;

    float at(int64_t row, int64_t index) const {
        const int64_t i = row * groups + index;
        switch (type) {
        case DType::f32: return static_cast<const float*>(values)[i];
        case DType::f16: return f16_to_f32(static_cast<const uint16_t*>(values)[i]);
        case DType::i8: return super_at(row, index) * float(static_cast<const int8_t*>(values)[i]);
        default: return super_at(row, index) * float(static_cast<const uint8_t*>(values)[i]);
        }
    }

    float super_at(int64_t row, int64_t index) const {
        return f16_to_f32(super[row * supers + index * group / kSuper]);
    }
};

// Copies one element per row into the lanes of the packed tile.
template <class Element>
uint8_t* pack_column(const Element* from, int64_t stride, Rows rows, uint8_t* to) {
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        std::memcpy(to + lane * static_cast<int64_t>(sizeof(Element)), from + lane * stride,
                    sizeof(Element));
    }
    return to + kPackedTileRows * static_cast<int64_t>(sizeof(Element));
}

// Packs the scales or the minima of one group of each row.
uint8_t* pack_group(const Values& source, ScaleForm form, Rows rows, int64_t group, uint8_t* to) {
    const int64_t offset = rows.first * source.groups + group;
    switch (form) {
    case ScaleForm::f16:
        return pack_column(static_cast<const uint16_t*>(source.values) + offset, source.groups,
                           rows, to);
    case ScaleForm::two_level:
        return pack_column(static_cast<const uint8_t*>(source.values) + offset, source.groups, rows,
                           to);
    case ScaleForm::f32:
    case ScaleForm::paired: break; // packed by pack_paired_scales
    }
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        const float value = source.at(rows.first + lane, group);
        std::memcpy(to + 4 * lane, &value, 4);
    }
    return to + 4 * kPackedTileRows;
}

constexpr double kLargestInt16 = 32767.0;

int16_t nearest_int16(double value) {
    return static_cast<int16_t>(std::clamp(std::nearbyint(value), -kLargestInt16, kLargestInt16));
}

// Writes the scales of one row into its lane of a packed tile with paired scales (layout in
// packed_tile.h): the step, and for every two units, `pair_bytes` apart, their scales and minima.
void pack_paired_scales(const Values& scales, const Values& minima, int64_t row, int64_t lane,
                        bool stored_minimum, uint8_t* packed_tile, int64_t pair_bytes) {
    std::vector<std::array<double, 2>> groups(static_cast<size_t>(scales.groups));
    double largest = 0.0; // a NaN propagates
    for (int64_t unit = 0; unit < scales.groups; ++unit) {
        const double scale = scales.at(row, unit);
        const double centred =
            stored_minimum ? (minima.at(row, unit) + kPairedCentre * scale) / kPairedCentre : 0.0;
        groups[static_cast<size_t>(unit)] = {scale, centred};
        for (const double value : {scale, centred}) {
            const double size = std::fabs(value);
            largest = size > largest || std::isnan(size) ? size : largest;
        }
    }
    const auto step = static_cast<float>(largest / kLargestInt16);
    std::memcpy(packed_tile + lane * 4, &step, sizeof step);
    const bool usable = step > 0.0f && std::isfinite(step);
    const double inverse = usable ? 1.0 / step : 0.0;
    for (int64_t unit = 0; unit < scales.groups; ++unit) {
        uint8_t* to =
            packed_tile + 4 * kPackedTileRows + unit / 2 * pair_bytes + 4 * lane + unit % 2 * 2;
        for (const double value : groups[static_cast<size_t>(unit)]) {
            const int16_t rounded = usable ? nearest_int16(value * inverse) : int16_t{0};
            std::memcpy(to, &rounded, sizeof rounded);
            to += 4 * kPackedTileRows;
            if (!stored_minimum)
                break;
        }
    }
}

void pack_paired(const MatrixSource& source, const PackedMatrix& part, Rows rows, uint8_t* to) {
    const int64_t units = source.depth / kUnit, pair_bytes = 2 * unit_bytes(part);
    const Values scales{source.scale, source.scale_dtype, nullptr, source.group, units, 0};
    const Values minima{source.minimum, source.minimum_dtype, nullptr, source.group, units, 0};
    const int64_t unit_quants = quant_bytes(Encoding::affine4);
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        const int64_t row = rows.first + lane;
        pack_paired_scales(scales, minima, row, lane, part.stored_minimum, to, pair_bytes);
        const uint8_t* quants = source.q + row * units * Affine4::kSourceBytes;
        for (int64_t unit = 0; unit < units; ++unit) {
            uint8_t* pair = to + head_bytes(part) + (unit / 2 + 1) * pair_bytes - 2 * unit_quants;
            Affine4::pack(quants + unit * Affine4::kSourceBytes,
                          pair + unit % 2 * unit_quants + 4 * lane);
        }
    }
}

template <class Quants>
void pack_affine(const Quants& encoding, const MatrixSource& source, const PackedMatrix& part,
                 Rows rows, uint8_t* to) {
    const int64_t units = source.depth / kUnit;
    const int64_t groups = source.depth / source.group;
    const int64_t supers = (source.depth + kSuper - 1) / kSuper;
    const Values scales{source.scale, source.scale_dtype, source.super_scale, source.group, groups,
                        supers};
    const Values minima{
        source.minimum, source.minimum_dtype, source.super_minimum, source.group, groups, supers};
    const int64_t unit_groups = kUnit / source.group;
    const int64_t row_bytes = units * Quants::kSourceBytes;
    const uint8_t* quants = source.q + rows.first * row_bytes;
    for (int64_t unit = 0; unit < units; ++unit) {
        if (part.scale_form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
            const int64_t offset = rows.first * supers + unit / kUnitsPerSuper;
            to = pack_column(source.super_scale + offset, supers, rows, to);
            if (part.stored_minimum) {
                to = pack_column(source.super_minimum + offset, supers, rows, to);
            }
        }
        const int64_t first = unit * unit_groups;
        for (int64_t group = first; group < first + unit_groups; ++group) {
            to = pack_group(scales, part.scale_form, rows, group, to);
        }
        for (int64_t group = first; group < first + unit_groups && part.stored_minimum; ++group) {
            to = pack_group(minima, part.scale_form, rows, group, to);
        }
        for (int64_t lane = 0; lane < rows.count; ++lane) {
            encoding.pack(quants + lane * row_bytes + unit * Quants::kSourceBytes, to + 4 * lane);
        }
        to += quant_bytes(part.encoding);
    }
}

template <class Element>
void pack_dense(const MatrixSource& source, Rows rows, Element* to) {
    // Number of k that are packed together: the rows read and the packed tile written stay in the
    // L1 cache.
    constexpr int64_t kTile = 64;
    const Element* from = static_cast<const Element*>(source.dense) + rows.first * source.depth;
    for (int64_t begin = 0; begin < source.depth; begin += kTile) {
        const int64_t end = std::min(begin + kTile, source.depth);
        for (int64_t lane = 0; lane < rows.count; ++lane) {
            for (int64_t k = begin; k < end; ++k) {
                to[k * kPackedTileRows + lane] = from[lane * source.depth + k];
            }
        }
    }
}

void pack_bf16(const MatrixSource& source, Rows rows, uint16_t* to) {
    const uint16_t* from = static_cast<const uint16_t*>(source.dense) + rows.first * source.depth;
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        for (int64_t k = 0; k < source.depth; ++k) {
            to[(k / 2 * kPackedTileRows + lane) * 2 + k % 2] = from[lane * source.depth + k];
        }
    }
}

// Packs the group of one row that starts at k into the lane of its scale and of its int16 pairs.
template <float (*kWiden)(uint16_t)>
void pack_fixed_group(const uint16_t* row, int64_t k, int64_t depth, uint8_t* scale_at,
                      uint8_t* pairs_at) {
    const int64_t end = std::min(k + kFixedGroup, depth);
    float largest = 0.0f;
    bool finite = true;
    for (int64_t i = k; i < end; ++i) {
        const float value = std::fabs(kWiden(row[i]));
        finite = finite && std::isfinite(value);
        largest = std::max(largest, value);
    }
    const float scale = finite ? largest / kLargestFixedWeight : std::nanf("");
    std::memcpy(scale_at, &scale, sizeof scale);
    if (!finite || largest < kLeastFixedGroup)
        return; // the integers stay 0
    for (int64_t i = k; i < end; ++i) {
        const auto value =
            static_cast<int16_t>(std::nearbyint(kWiden(row[i]) * (kLargestFixedWeight / largest)));
        const int64_t unit = (i - k) / kUnit, at = (i - k) % kUnit, pairs = kUnit / 2;
        std::memcpy(pairs_at + (unit * pairs + at % pairs) * kStepBytes + at / pairs * 2, &value,
                    sizeof value);
    }
}

void pack_i16(const MatrixSource& source, Rows rows, uint8_t* to) {
    const auto* from = static_cast<const uint16_t*>(source.dense) + rows.first * source.depth;
    const auto pack_group = source.dense_dtype == DType::f16 ? pack_fixed_group<f16_to_f32>
                                                             : pack_fixed_group<bf16_to_f32>;
    for (int64_t k = 0; k < source.depth; k += kFixedGroup) {
        for (int64_t lane = 0; lane < rows.count; ++lane) {
            pack_group(from + lane * source.depth, k, source.depth, to + 4 * lane,
                       to + kStepBytes + 4 * lane);
        }
        to += kStepBytes * (1 + kFixedGroup / 2);
    }
}

} // namespace

void pack_tile(const MatrixSource& source, const PackedMatrix& part, int64_t packed_tile) {
    uint8_t* to = part.data + packed_tile * part.packed_tile_bytes;
    const int64_t first = packed_tile * kPackedTileRows;
    const Rows rows{first, std::min<int64_t>(kPackedTileRows, source.rows - first)};
    const bool padded = rows.count < kPackedTileRows || part.encoding == Encoding::dense_bf16 ||
                        part.encoding == Encoding::dense_i16;
    if (padded)
        std::memset(to, 0, static_cast<size_t>(part.packed_tile_bytes));
    if (part.scale_form == ScaleForm::paired)
        return pack_paired(source, part, rows, to);
    switch (part.encoding) {
    case Encoding::affine4: pack_affine(Affine4{}, source, part, rows, to); break;
    case Encoding::affine6: pack_affine(Affine6{}, source, part, rows, to); break;
    case Encoding::table4:
    case Encoding::table4_narrow: pack_affine(Tabled{source, part}, source, part, rows, to); break;
    case Encoding::affine8: pack_affine(Affine8{}, source, part, rows, to); break;
    case Encoding::dense_f32: pack_dense(source, rows, reinterpret_cast<uint32_t*>(to)); break;
    case Encoding::dense_f16: pack_dense(source, rows, reinterpret_cast<uint16_t*>(to)); break;
    case Encoding::dense_bf16: pack_bf16(source, rows, reinterpret_cast<uint16_t*>(to)); break;
    case Encoding::dense_i16: pack_i16(source, rows, to); break;
    }
}

} // namespace penstock::cpu
