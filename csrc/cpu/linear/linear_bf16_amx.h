// Products of bf16 weights in bf16 AMX tiles. Included by linear_dense.inl.h.
//
// Activations are rounded to bf16, half to even, for any number of rows, so that all batch sizes
// have the same arithmetic: out = bias + the tile products of steps of 32 k, added in order.
#pragma once

#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"
#include "cpu/simd/matrix_tiles.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kBf16BlockRows = 2 * kTileRows;

// Returns the bytes of a block's rounded activations and of one tile of sums.
PENSTOCK_INLINE size_t bf16_workspace_bytes(const LinearWeights& linear) {
    return static_cast<size_t>(kBf16BlockRows * bf16_row_bytes(linear.depth) +
                               2 * kTileRows * 4 * kPackedTileRows);
}

#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)

PENSTOCK_INLINE void round_row(const float* x, int64_t depth, uint8_t* to) {
    auto* out = reinterpret_cast<uint16_t*>(to);
    int64_t k = 0;
    for (; k + kLanes <= depth; k += kLanes)
        store_bf16(out + k, load(x + k));
    const int64_t padded = ceil_div(depth, kUnit) * kUnit;
    for (; k < padded; k += kLanes) {
        store_bf16(out + k, load(x + k, k < depth ? static_cast<int>(depth - k) : 0));
    }
}

// Configures the tiles. 0, 1: sums of up to 32 rows; 2, 3: activations of these rows; 4: weights.
PENSTOCK_INLINE void configure_bf16(int64_t rows) {
    const auto first = static_cast<uint8_t>(rows < kTileRows ? rows : kTileRows);
    const auto second = static_cast<uint8_t>(rows > kTileRows ? rows - kTileRows : 1);
    configure_tiles({{first, 64}, {second, 64}, {first, 64}, {second, 64}, {16, 64}, {}, {}, {}});
}

// Multiplies a block of rows with one packed tile. Stores the sums to `sums`, 16 float32 per row.
// kTall: the block has more than 16 rows.
template <bool kTall>
PENSTOCK_INLINE void multiply_bf16_packed_tile(const uint8_t* packed_tile, int64_t steps,
                                               const uint8_t* x, int64_t x_stride,
                                               PrefetchLines& prefetcher, float* sums) {
    constexpr int64_t kStepBytes = 2 * kUnit * kPackedTileRows;
    zero_tile<0>();
    if constexpr (kTall)
        zero_tile<1>();
    for (int64_t step = 0; step < steps; ++step) {
        prefetcher.step();
        load_tile<4>(packed_tile + step * kStepBytes, 4 * kPackedTileRows);
        load_tile<2>(x + step * 2 * kUnit, x_stride);
        multiply_bf16<0, 2, 4>();
        if constexpr (kTall) {
            load_tile<3>(x + kTileRows * x_stride + step * 2 * kUnit, x_stride);
            multiply_bf16<1, 3, 4>();
        }
    }
    store_tile<0>(sums, 4 * kPackedTileRows);
    if constexpr (kTall)
        store_tile<1>(sums + kTileRows * kPackedTileRows, 4 * kPackedTileRows);
}

PENSTOCK_INLINE void multiply_bf16_tiles(const LinearWeights& linear, const LinearTask& task,
                                         const TensorView& x, const TensorView& out,
                                         Workspace& workspace) {
    const PackedMatrix& part = *task.part;
    const int64_t row_bytes = bf16_row_bytes(linear.depth);
    const int64_t steps = ceil_div(linear.depth, kUnit);
    auto* rounded = static_cast<uint8_t*>(workspace.data);
    auto* sums = reinterpret_cast<float*>(rounded + kBf16BlockRows * row_bytes);
    for (int64_t row = task.row_begin; row < task.row_end; row += kBf16BlockRows) {
        const int64_t left = task.row_end - row;
        const int64_t rows = left < kBf16BlockRows ? left : kBf16BlockRows;
        for (int64_t m = 0; m < rows; ++m) {
            round_row(static_cast<const float*>(x.data) + (row + m) * x.stride[0], linear.depth,
                      rounded + m * row_bytes);
        }
        configure_bf16(rows);
        for (int64_t packed_tile = task.packed_tile_begin; packed_tile < task.packed_tile_end;
             ++packed_tile) {
            const uint8_t* weights = part.data + packed_tile * part.packed_tile_bytes;
            PrefetchLines prefetcher = row == task.row_begin
                                           ? prefetch_next_tiles(task, packed_tile, 1, steps)
                                           : PrefetchLines();
            if (rows > kTileRows) {
                multiply_bf16_packed_tile<true>(weights, steps, rounded, row_bytes, prefetcher,
                                                sums);
            } else {
                multiply_bf16_packed_tile<false>(weights, steps, rounded, row_bytes, prefetcher,
                                                 sums);
            }
            for (int64_t m = 0; m < rows; ++m) {
                const F32 values[kPackedTileVectors] = {load(sums + m * kPackedTileRows)};
                store_tile_columns(linear, part, packed_tile, values,
                                   static_cast<float*>(out.data) + (row + m) * out.stride[0]);
            }
        }
    }
    release_tiles();
}

#else

PENSTOCK_INLINE void multiply_bf16_tiles(const LinearWeights&, const LinearTask&, const TensorView&,
                                         const TensorView&, Workspace&) {}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
