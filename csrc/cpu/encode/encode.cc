#include "cpu/encode/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/encode/small_blocks.h"
#include "cpu/encode/super_blocks.h"

namespace penstock::cpu::encode {
namespace {

constexpr BlockType TYPES[] = {
    {"Q4_0", 32, 18, LANES, encode_q4_0},     {"Q4_1", 32, 20, LANES, encode_q4_1},
    {"Q5_0", 32, 22, LANES, encode_q5_0},     {"Q5_1", 32, 24, LANES, encode_q5_1},
    {"Q8_0", 32, 34, LANES, encode_q8_0},     {"Q2_K", 256, 84, 1, encode_q2_k},
    {"Q3_K", 256, 110, 1, encode_q3_k},       {"Q4_K", 256, 144, 1, encode_q4_k},
    {"Q5_K", 256, 176, 1, encode_q5_k},       {"Q6_K", 256, 210, 1, encode_q6_k},
    {"IQ4_NL", 32, 18, LANES, encode_iq4_nl}, {"IQ4_XS", 256, 136, 1, encode_iq4_xs},
    {"MXFP4", 32, 17, LANES, encode_mxfp4},
};

constexpr int LARGEST_UNIT = 256;  // numbers
constexpr int LARGEST_BYTES = 256; // of a unit
constexpr float TINY = 1e-15f;     // smaller numbers round to zero in every type

// Copies a block, and weighs the squared error of each number by its importance times a mean of its
// own magnitude and that of the block.
void load_block(const float* weights, const float* importance, int block, float* numbers,
                float* errors) {
    float squares = 0, total = 0;
    for (int k = 0; k < block; ++k) {
        numbers[k] = std::abs(weights[k]) < TINY ? 0.0f : weights[k];
        squares += numbers[k] * numbers[k];
        total += importance ? importance[k] : 1.0f;
    }
    // Only ratios matter within a block. Columns without importance still get the nearest level.
    const float mean = squares / static_cast<float>(block), scale = static_cast<float>(block);
    for (int k = 0; k < block; ++k) {
        const float own = importance && total > 0 ? importance[k] / total * scale + 1e-6f : 1.0f;
        errors[k] = own * std::sqrt(mean + numbers[k] * numbers[k]);
    }
}

} // namespace

std::span<const BlockType> block_types() {
    return TYPES;
}

const BlockType* block_type_named(std::string_view name) {
    const auto found = std::find_if(std::begin(TYPES), std::end(TYPES),
                                    [&](const BlockType& type) { return type.name == name; });
    return found == std::end(TYPES) ? nullptr : found;
}

void encode_blocks(const BlockType& type, const float* weights, const float* importance,
                   int64_t columns, int64_t begin, int64_t end, uint8_t* out) {
    float numbers[LARGEST_UNIT], errors[LARGEST_UNIT];
    uint8_t packed[LARGEST_BYTES];
    const int64_t per_row = columns / type.block;
    for (int64_t first = begin; first < end; first += type.unit) {
        const int64_t count = std::min<int64_t>(type.unit, end - first);
        std::fill(std::begin(numbers), std::end(numbers), 0.0f);
        std::fill(std::begin(errors), std::end(errors), 1.0f);
        for (int64_t b = 0; b < count; ++b) {
            const float* own =
                importance ? importance + (first + b) % per_row * type.block : nullptr;
            load_block(weights + (first + b) * type.block, own, type.block,
                       numbers + b * type.block, errors + b * type.block);
        }
        type.encode(numbers, errors, packed);
        std::copy_n(packed, count * type.size_bytes, out + (first - begin) * type.size_bytes);
    }
}

} // namespace penstock::cpu::encode
