// Products of activations that are rounded before they are multiplied, for bf16 weights
// (linear_bf16.h) on ISAs with VDPBF16PS, and int16 weights (linear_int16.h).
// Included by linear_dense.inl.h.
//
// A call of many rows rounds them once, in a phase of its own, to memory that the caller provides.
// A call of few rows, and any other caller, rounds them in each task. Both give the same bits.
//
// A Format defines the arithmetic:
//   row_bytes(depth)          bytes of a rounded row
//   row_offset(linear)        where it starts in the memory of a row
//   steps(depth)              prefetcher.step() calls of one multiply
//   round(x, depth, to)       rounds a row
//   multiply(tiles, depth, rows, prefetcher, totals)  sums of rows times packed tiles, without bias
#pragma once

#include "cpu/dot/int16_pairs.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"
#include "cpu/row_tasks.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Rows from which a phase of its own for rounding costs less than rounding in each task.
constexpr int64_t kMinSharedRows = 8;

// About 5 microseconds of rounding.
using RoundingTasks = RowTasks<1 << 15>;

#if defined(PENSTOCK_INT16_PRODUCTS)

// A product of rounded rows.
struct RoundedOperands {
    const LinearWeights* linear;
    const PackedMatrix* part;
    const uint8_t* rows;
    int64_t row_stride; // in bytes
    float* out;
    int64_t out_stride;
};

// Multiplies rows [row, row + kRows) with the packed tiles from `packed_tile` on, before `end`.
// Returns kRows.
template <class Format, int kRows, int kTiles>
int64_t multiply_rounded_rows(const RoundedOperands& operands, int64_t packed_tile, int64_t end,
                              int64_t row, PrefetchLines& prefetcher) {
    const PackedTileGroup<kTiles> tiles(*operands.part, packed_tile, end);
    const uint8_t* in[kRows];
    for (int m = 0; m < kRows; ++m)
        in[m] = operands.rows + (row + m) * operands.row_stride;
    F32 total[kRows][kTiles][kPackedTileVectors];
    Format::multiply(tiles.data, operands.linear->depth, in, prefetcher, total);
    for (int m = 0; m < kRows; ++m) {
        for (int j = 0; j < kTiles; ++j) {
            store_tile_columns(*operands.linear, *operands.part, tiles.index[j], total[m][j],
                               operands.out + (row + m) * operands.out_stride);
        }
    }
    return kRows;
}

// Multiplies the next of `left` rows and returns their number: the largest block size that fits.
// Few sizes keep the code small.
template <class Format, int kTiles>
PENSTOCK_INLINE int64_t multiply_rounded_block(const RoundedOperands& operands, int64_t packed_tile,
                                               int64_t end, int64_t row, int64_t left,
                                               PrefetchLines& prefetcher) {
    if constexpr (kTiles == kDensePackedTiles) {
        if (left >= kMaxPairRows) {
            return multiply_rounded_rows<Format, kMaxPairRows, kTiles>(operands, packed_tile, end,
                                                                       row, prefetcher);
        }
    }
    if (left >= 4)
        return multiply_rounded_rows<Format, 4, kTiles>(operands, packed_tile, end, row,
                                                        prefetcher);
    if (left >= 2)
        return multiply_rounded_rows<Format, 2, kTiles>(operands, packed_tile, end, row,
                                                        prefetcher);
    return multiply_rounded_rows<Format, 1, kTiles>(operands, packed_tile, end, row, prefetcher);
}

// Multiplies `rows` rounded rows with each group of kTiles packed tiles of the task in turn.
// `prefetches`: these rows are the task's first.
template <class Format, int kTiles>
PENSTOCK_INLINE void multiply_rounded_group(const RoundedOperands& operands, const LinearTask& task,
                                            int64_t rows, bool prefetches) {
    const int64_t end = task.packed_tile_end;
    const int64_t steps = Format::steps(operands.linear->depth) * ceil_div(rows, kMaxPairRows);
    for (int64_t tile = task.packed_tile_begin; tile < end; tile += kTiles) {
        const int64_t count = end - tile < kTiles ? end - tile : kTiles;
        PrefetchLines prefetcher =
            prefetches ? prefetch_next_tiles(task, tile, count, steps) : PrefetchLines();
        for (int64_t row = 0; row < rows;) {
            row += multiply_rounded_block<Format, kTiles>(operands, tile, end, row, rows - row,
                                                          prefetcher);
        }
    }
}

// Runs one task. `rounded`: the rounded rows of the call, or without memory if the task rounds its
// rows.
template <class Format>
PENSTOCK_INLINE void multiply_rounded(const LinearWeights& linear, const LinearTask& task,
                                      const TensorView& x, const TensorView& rounded,
                                      const TensorView& out, Workspace& workspace) {
    const int64_t depth = linear.depth, row_bytes = Format::row_bytes(depth);
    const int64_t group = rounded_rows(row_bytes);
    const bool shared = rounded.data != nullptr;
    auto* const own = static_cast<uint8_t*>(workspace.data);
    for (int64_t first = task.row_begin; first < task.row_end; first += group) {
        const int64_t left = task.row_end - first, rows = left < group ? left : group;
        for (int64_t row = 0; row < rows && !shared; ++row)
            Format::round(x.row<float>(first + row), depth, own + row * row_bytes);
        const RoundedOperands operands{
            &linear,
            task.part,
            shared ? rounded.row<uint8_t>(first) + Format::row_offset(linear) : own,
            shared ? rounded.stride[0] : row_bytes,
            out.row<float>(first),
            out.stride[0]};
        const bool prefetches = first == task.row_begin;
        // Few rows wait for memory, and two packed tiles at once are two slower streams.
        if (task.row_end - task.row_begin < kMaxPairRows) {
            multiply_rounded_group<Format, 1>(operands, task, rows, prefetches);
        } else {
            multiply_rounded_group<Format, kDensePackedTiles>(operands, task, rows, prefetches);
        }
    }
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
