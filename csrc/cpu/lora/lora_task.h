// Tasks of the kernel `lora` and prefetch of its factors, for float and int8 products. Included by
// lora.inl.h.
#pragma once

#include "cpu/linear/linear_partition.h"
#include "cpu/lora/adapter_table.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace lora {

constexpr int64_t kBlockRows = 16; // rows per task
// Distances of prefetch. The factors of an adapter are in memory in the order of the step. They are
// prefetched twice: at a short distance, and far enough ahead to arrive from memory while the base
// model computes.
constexpr int64_t kAheadBytes = 4096;
constexpr int64_t kFarAheadBytes = 96 * 1024;

// The work of one task: rows order[begin .. end) and one slice, with the ranks or packed tiles from
// chunk `chunk` on.
struct Task {
    const AdapterSlice* slice;
    const AdapterSliceShape* shape;
    int64_t inner; // the slice's first column of `inner`
    int64_t begin;
    int64_t end;
    int64_t chunk;
};

struct Range {
    int64_t begin;
    int64_t end;
};

// Returns the blocks of ranks that a task of the first phase computes.
PENSTOCK_INLINE Range rank_blocks(const Task& task) {
    constexpr int64_t kBlocks = kAdapterTaskRanks / kAdapterRanks;
    const int64_t begin = task.chunk * kBlocks, all = ceil_div(task.slice->rank, kAdapterRanks);
    return {begin, begin + kBlocks < all ? begin + kBlocks : all};
}

// Returns the packed tiles of outputs that a task of the second phase computes.
PENSTOCK_INLINE Range packed_tiles_of(const Task& task) {
    constexpr int64_t kPackedTiles = kAdapterTaskRows / kAdapterOutputTile;
    const int64_t begin = task.chunk * kPackedTiles,
                  all = ceil_div(task.shape->rows, kAdapterOutputTile);
    return {begin, begin + kPackedTiles < all ? begin + kPackedTiles : all};
}

template <int64_t bytes>
PENSTOCK_INLINE void prefetch_ahead(const void* from) {
    const auto* first = static_cast<const uint8_t*>(from);
    for (int64_t i = 0; i < bytes; i += kLineBytes) {
        prefetch(first + kAheadBytes + i);
        prefetch_l2(first + kFarAheadBytes + i);
    }
}

} // namespace lora
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
