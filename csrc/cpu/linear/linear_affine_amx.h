// Products of affine weights in int8 AMX tiles, for blocks of many rows. They give the same
// integers and the same float sums as multiply_packed_tiles, so that choosing one or the other
// changes no bit of a row.
//
// A packed tile is unpacked once, to bytes and float32 scales, for all row blocks of a task.
// Included by linear_affine.inl.h.
#pragma once

#include "cpu/linear/linear_minima.h"
#include "cpu/linear/linear_prefetch.h"
#include "cpu/linear/unpacked_tile.h"
#include "cpu/simd/matrix_tiles.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int64_t kTileBlockRows = 16;
// Minimum rows of a tile block. With fewer rows, a tile idles more than VPDPBUSD loses.
constexpr int64_t kMinTileRows = 8;

// Groups whose dots are computed in turn, each in its own tile, while the vector unit adds the dots
// of the previous four groups.
constexpr int kDotTiles = 4;
constexpr int64_t kTileSums = kTileBlockRows * kPackedTileRows;

// Returns the bytes of the minima, the unpacked tile, and the int32 sums of two times four groups.
PENSTOCK_INLINE size_t affine_tiles_workspace_bytes(const LinearWeights& linear) {
    return minima_workspace_bytes(linear) + unpacked_tile_bytes(linear.depth) +
           2 * kDotTiles * kTileSums * sizeof(int32_t);
}

#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)

// Configures the tiles. 0 .. 3: sums of four dots; 4, 5: activations; 6, 7: weights.
PENSTOCK_INLINE void configure_int8(int64_t rows, int group) {
    const auto m = static_cast<uint8_t>(rows);
    const auto row_bytes = static_cast<uint8_t>(group);
    const auto steps = static_cast<uint8_t>(group / 4);
    configure_tiles({{m, 64},
                     {m, 64},
                     {m, 64},
                     {m, 64},
                     {m, row_bytes},
                     {m, row_bytes},
                     {steps, 64},
                     {steps, 64}});
}

// Computes the dots of one group for all rows of a block in tile `c` and stores them to `sums`.
template <int c, int kGroup>
PENSTOCK_INLINE void dot_tile(const uint8_t* x, int64_t x_stride,
                              const UnpackedUnit<8, kGroup>* unpacked, int64_t group,
                              int32_t* sums) {
    constexpr int kGroups = kUnit / kGroup;
    const int64_t unit = group / kGroups;
    const int64_t part = group % kGroups;
    zero_tile<c>();
    load_tile<4 + c % 2>(x + unit * static_cast<int64_t>(sizeof(QuantizedUnit)) + part * kGroup,
                         x_stride);
    load_tile<6 + c % 2>(unpacked[unit].quants[part * kGroup / 4], 4 * kPackedTileRows);
    multiply_i8<c, 4 + c % 2, 6 + c % 2>();
    store_tile<c>(sums, 4 * kPackedTileRows);
}

// Adds the dots of one group to the accumulators, in the same way as multiply_packed_tiles. Row
// pointers past the block point to the block's last row.
template <int kGroup>
PENSTOCK_INLINE void add_group(const UnpackedUnit<8, kGroup>* unpacked, int64_t group,
                               const PackedMatrix& of, const uint8_t* const* row,
                               const int32_t* sums, F32 (&acc)[kTileBlockRows]) {
    constexpr int kGroups = kUnit / kGroup;
    const int64_t unit = group / kGroups;
    const int64_t part = group % kGroups;
    const int32_t correction = -of.zero_point;
    const int32_t first = kGroup == kUnit || part == 0 ? correction : 0;
    const int32_t second = kGroup == kUnit || part == 1 ? correction : 0;
    const F32 scale = load(unpacked[unit].scale[part]);
    unrolled<static_cast<int>(kTileBlockRows)>([&](auto m) {
        const auto& in = reinterpret_cast<const QuantizedUnit*>(row[m.value])[unit];
        I32 dot = load(sums + m.value * kPackedTileRows);
        if (correction != 0)
            dot = dot + sums_times(in.sum, first, second);
        acc[m.value] = fma(to_float(dot), broadcast(in.scale) * scale, acc[m.value]);
    });
    if (kMinimaByTiles<kGroup> || !of.stored_minimum)
        return;
    const F32 minimum = load(unpacked[unit].minimum[part]);
    unrolled<static_cast<int>(kTileBlockRows)>([&](auto m) {
        const auto& in = reinterpret_cast<const QuantizedUnit*>(row[m.value])[unit];
        const float sum_x =
            kGroup == kUnit ? in.scaled_sum : in.scale * static_cast<float>(in.sum[part]);
        acc[m.value] = fma(minimum, broadcast(sum_x), acc[m.value]);
    });
}

template <int kGroup>
PENSTOCK_INLINE void multiply_tile_block(const UnpackedUnit<8, kGroup>* unpacked, int64_t groups,
                                         const PackedMatrix& of, const uint8_t* x, int64_t x_stride,
                                         int64_t rows, int32_t* sums, PrefetchLines& prefetcher,
                                         F32 (&out)[kTileBlockRows]) {
    const uint8_t* row[kTileBlockRows];
    for (int64_t m = 0; m < kTileBlockRows; ++m)
        row[m] = x + (m < rows ? m : rows - 1) * x_stride;
    const auto dots = [&](int64_t first, int32_t* to) {
        unrolled<kDotTiles>([&](auto i) {
            if (first + i.value < groups) {
                dot_tile<decltype(i)::value, kGroup>(x, x_stride, unpacked, first + i.value,
                                                     to + i.value * kTileSums);
            }
        });
    };
    F32 acc[kTileBlockRows] = {}; // in registers: all indices are compile-time constants
    int32_t* added = sums;
    int32_t* next = sums + kDotTiles * kTileSums;
    dots(0, added);
    for (int64_t first = 0; first < groups; first += kDotTiles) {
        prefetcher.step();
        dots(first + kDotTiles, next);
        const int64_t left = groups - first, count = left < kDotTiles ? left : kDotTiles;
        for (int64_t i = 0; i < count; ++i)
            add_group<kGroup>(unpacked, first + i, of, row, added + i * kTileSums, acc);
        int32_t* const free = added;
        added = next, next = free;
    }
    unrolled<static_cast<int>(kTileBlockRows)>([&](auto m) { out[m.value] = acc[m.value]; });
}

// Calls f(row, rows) for blocks of 16 rows within [begin, end); the last block may be shorter.
template <class Function>
PENSTOCK_INLINE void for_tile_blocks(int64_t begin, int64_t end, const Function& f) {
    for (int64_t row = begin; row < end; row += kTileBlockRows)
        f(row, end - row < kTileBlockRows ? end - row : kTileBlockRows);
}

// Computes the sums of minima of one packed tile for rows [begin, end).
template <Encoding kEncoding>
PENSTOCK_INLINE void sum_minima(const AffineOperands& operands, const PackedMatrix& part,
                                const uint8_t* packed_tile, int64_t begin, int64_t end,
                                const MinimumBuffers& minima) {
    split_minima<kEncoding>(part, packed_tile, minima.depth / kUnit, minima.steps());
    int64_t configured = 0;
    for_tile_blocks(begin, end, [&](int64_t row, int64_t rows) {
        if (rows != configured)
            configure_minima(rows);
        configured = rows;
        multiply_minima(minima.steps(), minima.depth, operands.x + row * operands.x_stride,
                        operands.x_stride, minima.sums() + (row - begin) * kPackedTileRows);
    });
}

// Multiplies rows [task.row_begin, row_end) of a task. Leaves the tiles configured.
template <Encoding kEncoding, int kGroup>
PENSTOCK_INLINE void multiply_tiles(const AffineOperands& operands, const LinearTask& task,
                                    int64_t row_end, Workspace& workspace) {
    const LinearWeights& linear = *operands.linear;
    const PackedMatrix& part = *task.part;
    const int64_t units = linear.depth / kUnit, groups = units * (kUnit / kGroup);
    const int64_t steps =
        ceil_div(row_end - task.row_begin, kTileBlockRows) * ceil_div(groups, kDotTiles);
    const MinimumBuffers minima{workspace.data, linear.depth};
    auto* unpacked = reinterpret_cast<UnpackedUnit<8, kGroup>*>(
        static_cast<uint8_t*>(workspace.data) + minima_workspace_bytes(linear));
    auto* sums = reinterpret_cast<int32_t*>(unpacked + units);
    const bool minima_apart = kMinimaByTiles<kGroup> && part.stored_minimum;
    for (int64_t packed_tile = task.packed_tile_begin; packed_tile < task.packed_tile_end;
         ++packed_tile) {
        const uint8_t* data = part.data + packed_tile * part.packed_tile_bytes;
        if (minima_apart)
            sum_minima<kEncoding>(operands, part, data, task.row_begin, row_end, minima);
        unpack_tile<kEncoding>(part, data, units, unpacked);
        PrefetchLines prefetcher = prefetch_next_tiles(task, packed_tile, 1, steps);
        int64_t configured = 0;
        for_tile_blocks(task.row_begin, row_end, [&](int64_t row, int64_t rows) {
            if (rows != configured)
                configure_int8(rows, kGroup);
            configured = rows;
            F32 acc[kTileBlockRows];
            multiply_tile_block<kGroup>(unpacked, groups, part,
                                        operands.x + row * operands.x_stride, operands.x_stride,
                                        rows, sums, prefetcher, acc);
            const float* of_minima = minima.sums() + (row - task.row_begin) * kPackedTileRows;
            for (int64_t m = 0; m < rows; ++m) {
                const F32 sum =
                    minima_apart ? acc[m] + load(of_minima + m * kPackedTileRows) : acc[m];
                const F32 values[kPackedTileVectors] = {sum};
                store_tile_columns(linear, part, packed_tile, values,
                                   operands.out + (row + m) * operands.out_stride);
            }
        });
    }
}

#else

template <Encoding kEncoding, int kGroup>
PENSTOCK_INLINE void multiply_tiles(const AffineOperands&, const LinearTask&, int64_t, Workspace&) {
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
