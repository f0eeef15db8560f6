// Shared by the products of the kernel `lora`: the tasks, and the prefetch of factors. Included by
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
// The factors of an adapter are in memory in the order of the step. They are prefetched twice: at a
// short distance, and far enough ahead to arrive from memory while the base model computes.
constexpr int64_t kAheadBytes = 4096;
constexpr int64_t kFarAheadBytes = 96 * 1024;

// Rows order[begin .. end) of one slice, ranks or packed tiles from `chunk` on.
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

// The blocks of ranks of a task of the first phase.
PENSTOCK_INLINE Range rank_blocks(const Task& task) {
    constexpr int64_t kBlocks = kAdapterTaskRanks / kAdapterRanks;
    const int64_t begin = task.chunk * kBlocks, all = ceil_div(task.slice->rank, kAdapterRanks);
    return {begin, begin + kBlocks < all ? begin + kBlocks : all};
}

// The packed tiles of outputs of a task of the second phase.
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
