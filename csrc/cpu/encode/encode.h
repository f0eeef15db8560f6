// Quantizes float weights to the block types of GGML, by a search for the smallest weighted squared
// error per block. Depends on the standard library only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock::cpu::encode {

// A type that can be written. Its blocks of `block` numbers have `size_bytes` bytes each.
struct BlockType {
    const char* name;
    int block;
    int size_bytes;
    int unit; // blocks that are encoded together, for speed
    // Writes `unit` blocks; `weights`, `importance`: unit * block numbers.
    void (*encode)(const float* weights, const float* importance, uint8_t* out);
};

std::span<const BlockType> block_types();

// Returns the type with this name, or null.
const BlockType* block_type_named(std::string_view name);

// Encodes the blocks [begin, end) of a matrix, numbered along its rows, into `out`, which is the
// first block's place. `columns` must be a multiple of the block. `importance` [columns], of finite
// numbers >= 0: the weight of each column in the error; null: all are equal. `weights` must be
// finite. Threads may encode disjoint ranges concurrently; results do not depend on the ranges.
void encode_blocks(const BlockType& type, const float* weights, const float* importance,
                   int64_t columns, int64_t begin, int64_t end, uint8_t* out);

} // namespace penstock::cpu::encode
