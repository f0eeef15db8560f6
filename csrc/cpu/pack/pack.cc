#include "cpu/pack/pack.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "cpu/pack/pack_tile.h"

namespace penstock::cpu {
namespace {

constexpr size_t kAlignment = 64;

bool is_multiplier(DType type) {
    return type == DType::i8 || type == DType::u8;
}
bool is_float_scale(DType type) {
    return type == DType::f16 || type == DType::f32;
}

// Returns whether every value fits the int8 multipliers of the two-level form.
bool fits_int8(const void* values, DType type, int64_t count) {
    if (values == nullptr || type == DType::i8)
        return true;
    const auto* bytes = static_cast<const uint8_t*>(values);
    return std::all_of(bytes, bytes + count, [](uint8_t value) { return value < 128; });
}

constexpr int64_t kScanned = 4096; // quants read between checks

// Returns whether every quant fits 6 bits. Stops soon after the first that does not.
bool fits_six_bits(const MatrixSource& source) {
    const int64_t count = source.rows * source.depth;
    for (int64_t begin = 0; begin < count; begin += kScanned) {
        const int64_t end = std::min(begin + kScanned, count);
        uint8_t bits = 0;
        for (int64_t i = begin; i < end; ++i)
            bits |= source.q[i];
        if (bits > 63)
            return false;
    }
    return true;
}

// Writes the values that the quants have, in ascending order, to `table`, whose rest repeats the
// last one. Returns false, soon after the first value that does not fit, if there are more.
bool fits_table(const MatrixSource& source, uint8_t (&table)[kTableSize]) {
    if (source.minimum != nullptr)
        return false;
    const int64_t count = source.rows * source.depth;
    std::array<bool, 256> seen{};
    for (int64_t begin = 0; begin < count; begin += kScanned) {
        const int64_t end = std::min(begin + kScanned, count);
        for (int64_t i = begin; i < end; ++i)
            seen[source.q[i]] = true;
        if (std::count(seen.begin(), seen.end(), true) > kTableSize)
            return false;
    }
    int size = 0;
    for (int q = 0; q < 256; ++q) {
        if (seen[static_cast<size_t>(q)])
            table[size++] = static_cast<uint8_t>(q);
    }
    for (int i = size; i < kTableSize; ++i)
        table[i] = table[size - 1];
    return true;
}

// Subtracts the least q of a table from all of them and from the zero point, if they then fit 6
// bits: AVX2 multiplies these faster.
void narrow_table(PackedMatrix& part) {
    const uint8_t least = part.table[0];
    if (part.table[kTableSize - 1] - least > 63)
        return;
    part.encoding = Encoding::table4_narrow;
    part.zero_point -= least;
    for (uint8_t& q : part.table)
        q = static_cast<uint8_t>(q - least);
}

ScaleForm scale_form(const MatrixSource& source) {
    const int64_t count = source.rows * (source.depth / source.group);
    if (is_multiplier(source.scale_dtype)) {
        const bool compact = fits_int8(source.scale, source.scale_dtype, count) &&
                             fits_int8(source.minimum, source.minimum_dtype, count);
        return compact ? ScaleForm::two_level : ScaleForm::f32;
    }
    const bool halves = source.scale_dtype == DType::f16 &&
                        (source.minimum == nullptr || source.minimum_dtype == DType::f16);
    return halves ? ScaleForm::f16 : ScaleForm::f32;
}

// Returns whether the matrix is packed with paired scales: centred 4-bit quants times activations
// fit 16 bits, and 16-bit values represent float16 scales closely enough. A zero point far from the
// centre would make them too coarse: the rounding of a scale and of its minimum no longer cancel.
bool uses_paired_scales(const MatrixSource& source, Encoding encoding, Isa isa, Use use) {
    return has_paired_scales(isa) && use != Use::rows && encoding == Encoding::affine4 &&
           scale_form(source) == ScaleForm::f16 && source.group == kUnit &&
           (source.minimum != nullptr || source.zero_point == kPairedCentre) &&
           source.depth % (2 * kUnit) == 0;
}

PackedMatrix affine_part(const MatrixSource& source, Isa isa, Use use) {
    PackedMatrix part;
    part.encoding = source.bits == 4                 ? Encoding::affine4
                    : fits_table(source, part.table) ? Encoding::table4
                    : fits_six_bits(source)          ? Encoding::affine6
                                                     : Encoding::affine8;
    part.scale_form = scale_form(source);
    part.stored_minimum = source.minimum != nullptr;
    part.group = source.group;
    part.zero_point = part.stored_minimum ? 0 : source.zero_point;
    if (part.encoding == Encoding::table4)
        narrow_table(part);
    if (uses_paired_scales(source, part.encoding, isa, use)) {
        part.scale_form = ScaleForm::paired;
    }
    const int64_t units = source.depth / kUnit;
    const int64_t supers = (units + kUnitsPerSuper - 1) / kUnitsPerSuper;
    part.packed_tile_bytes =
        head_bytes(part) + units * unit_bytes(part) + supers * super_bytes(part);
    return part;
}

// Returns the bytes of an activation row in all formats that the parts multiply.
int64_t rounded_row_bytes(std::span<const PackedMatrix> parts, int64_t depth, Isa isa) {
    const auto any = [&](Encoding encoding) {
        return std::any_of(parts.begin(), parts.end(),
                           [&](const PackedMatrix& part) { return part.encoding == encoding; });
    };
    const bool bf16 = has_bf16_pairs(isa) && any(Encoding::dense_bf16);
    return (bf16 ? bf16_row_bytes(depth) : 0) +
           (any(Encoding::dense_i16) ? fixed_row_bytes(depth) : 0);
}

// Returns whether a dense matrix is packed as int16.
bool uses_int16(DType dtype, Isa isa, Use use) {
    if (!has_int16_products(isa) || use == Use::rows)
        return false;
    if (has_bf16_pairs(isa))
        return dtype == DType::f16 && use == Use::rounded_products;
    return dtype != DType::f32;
}

PackedMatrix dense_part(const MatrixSource& source, Isa isa, Use use) {
    PackedMatrix part;
    if (uses_int16(source.dense_dtype, isa, use)) {
        part.encoding = Encoding::dense_i16;
        part.packed_tile_bytes =
            4 * kPackedTileRows * fixed_groups(source.depth) +
            whole_units(source.depth) * kPackedTileRows * static_cast<int64_t>(sizeof(int16_t));
        return part;
    }
    part.encoding = source.dense_dtype == DType::f32   ? Encoding::dense_f32
                    : source.dense_dtype == DType::f16 ? Encoding::dense_f16
                                                       : Encoding::dense_bf16;
    const int64_t multiple = part.encoding != Encoding::dense_bf16 ? 1
                             : has_bf16_tiles(isa)                 ? kUnit
                                                                   : 2;
    const int64_t depth = (source.depth + multiple - 1) / multiple * multiple;
    part.packed_tile_bytes =
        depth * kPackedTileRows * static_cast<int64_t>(size_of(source.dense_dtype));
    return part;
}

std::string affine_refusal(const MatrixSource& source) {
    if (source.bits != 4 && source.bits != 8)
        return "bits must be 4 or 8";
    if (source.group != 16 && source.group != 32)
        return "group must be 16 or 32";
    if (source.depth % kUnit != 0)
        return "the depth of an integer weight must be a multiple of 32";
    if (source.q == nullptr || source.scale == nullptr)
        return "quants or scales are missing";
    if (source.zero_point < 0 || source.zero_point > 255)
        return "zero_point must be 0..255";
    const bool two_level = is_multiplier(source.scale_dtype);
    if (!two_level && !is_float_scale(source.scale_dtype))
        return "unsupported type of scales";
    if (two_level != (source.super_scale != nullptr)) {
        return "integer scales need super scales, other scales must not have them";
    }
    if (source.minimum == nullptr)
        return {};
    if (two_level != is_multiplier(source.minimum_dtype) ||
        two_level == is_float_scale(source.minimum_dtype)) {
        return "scales and minima must both be integers or both be floats";
    }
    if (two_level != (source.super_minimum != nullptr)) {
        return "integer minima need super minima, other minima must not have them";
    }
    return {};
}

std::string part_refusal(const MatrixSource& source, int64_t depth) {
    if (source.rows <= 0 || source.depth <= 0)
        return "the matrix is empty";
    if (source.depth != depth)
        return "the parts differ in depth";
    if (source.dense == nullptr)
        return affine_refusal(source);
    const DType type = source.dense_dtype;
    const bool known = type == DType::f32 || type == DType::f16 || type == DType::bf16;
    return known ? std::string{} : std::string{"unsupported type of a dense weight"};
}

} // namespace

std::string refusal(std::span<const MatrixSource> parts) {
    if (parts.empty())
        return "no matrix is given";
    for (size_t i = 0; i < parts.size(); ++i) {
        const std::string reason = part_refusal(parts[i], parts.front().depth);
        if (!reason.empty())
            return "part " + std::to_string(i) + ": " + reason;
    }
    return {};
}

PackedLinear::PackedLinear(std::span<const MatrixSource> parts, const float* bias, Isa isa, Use use)
    : sources_(parts.begin(), parts.end()), use_(use) {
    assert(refusal(parts).empty());
    std::vector<size_t> offsets;
    for (const MatrixSource& source : sources_) {
        PackedMatrix part =
            source.dense == nullptr ? affine_part(source, isa, use) : dense_part(source, isa, use);
        part.rows = source.rows;
        part.column = packed_tiles_.rows;
        part.packed_tiles = (source.rows + kPackedTileRows - 1) / kPackedTileRows;
        offsets.push_back(size_bytes_);
        const auto bytes = static_cast<size_t>(part.packed_tiles * part.packed_tile_bytes);
        size_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        packed_tiles_.rows += source.rows;
        num_packed_tiles_ += part.packed_tiles;
        parts_.push_back(part);
    }
    memory_ = WeightBlock::allocate(size_bytes_);
    for (size_t i = 0; i < parts_.size(); ++i)
        parts_[i].data = memory_.data() + offsets[i];
    if (bias != nullptr)
        bias_.assign(bias, bias + packed_tiles_.rows);
    packed_tiles_.parts = parts_.data();
    packed_tiles_.num_parts = static_cast<int32_t>(parts_.size());
    packed_tiles_.depth = sources_.front().depth;
    packed_tiles_.rounded_row_bytes = rounded_row_bytes(parts_, packed_tiles_.depth, isa);
    packed_tiles_.bias = bias_.empty() ? nullptr : bias_.data();
}

void PackedLinear::pack_tiles(int64_t begin, int64_t end) {
    int64_t first = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
        const PackedMatrix& part = parts_[i];
        const int64_t stop = std::min(end - first, part.packed_tiles);
        for (int64_t packed_tile = std::max<int64_t>(begin - first, 0); packed_tile < stop;
             ++packed_tile) {
            pack_tile(sources_[i], part, packed_tile);
        }
        first += part.packed_tiles;
    }
}

bool PackedLinear::has_affine() const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const PackedMatrix& part) { return is_affine(part.encoding); });
}

bool PackedLinear::has_dense() const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const PackedMatrix& part) { return !is_affine(part.encoding); });
}

} // namespace penstock::cpu
