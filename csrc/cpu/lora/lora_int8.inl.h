// LoRA products with int8 factors: activations and `inner` are quantized to int16 with one scale
// per row, and products are exact. Included by lora.inl.h.
//
// Each integer accumulator adds at most kExactRanks products per lane; the sum is then converted to
// float, scaled and added in order. For (A x)[r] the lanes are added in reduce_add's order. A row
// that contains a NaN or an infinity gives NaN.
#pragma once

#include "cpu/dot/int16_pairs.h"
#include "cpu/lora/lora_float.inl.h"
#include "cpu/lora/lora_task.h"
#include "cpu/simd/math.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace lora {

constexpr int64_t kNarrowUnit = 32;  // rows of int16 are padded with zeros to a multiple of this
constexpr int64_t kExactRanks = 512; // 512 * 127 * 32767 < 2^31
constexpr int64_t kExactTiles = kExactRanks * kLanes / kAdapterTile;
static_assert(kNarrowUnit % kAdapterTile == 0 && kNarrowUnit % (2 * kLanes) == 0);

// int16 rows in a thread's workspace. The values of row m must be multiplied by scale[m].
struct Narrow {
    float* scale;
    int16_t* values;
    int64_t columns;

    int16_t* row(int64_t m) const { return values + m * columns; }
};

constexpr size_t narrow_bytes(int64_t columns) {
    return static_cast<size_t>(kBlockRows) * sizeof(float) +
           static_cast<size_t>(kBlockRows * padded_to(columns, kNarrowUnit)) * sizeof(int16_t);
}

PENSTOCK_INLINE Narrow narrow_at(void* memory, int64_t columns) {
    auto* scale = static_cast<float*>(memory);
    return {scale, reinterpret_cast<int16_t*>(scale + kBlockRows), padded_to(columns, kNarrowUnit)};
}

PENSTOCK_INLINE Narrow narrow_input(const Arguments& call, const Workspace& workspace) {
    return narrow_at(workspace.data, call.tensor[0].shape[1]);
}

PENSTOCK_INLINE Narrow narrow_inner(const Arguments& call, const Workspace& workspace,
                                    int64_t rank) {
    const size_t before = narrow_bytes(call.tensor[0].shape[1]);
    return narrow_at(static_cast<std::byte*>(workspace.data) + before, rank);
}

// Returns the largest magnitude of n numbers, or NaN if one of them is infinite or NaN.
PENSTOCK_INLINE float largest_of(const float* from, int64_t n) {
    // integers in the order of the magnitudes, with NaN largest
    const I32 magnitude = broadcast(int32_t{0x7fffffff});
    I32 largest = broadcast(int32_t{0});
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        largest = max(largest, as_int(load(from + i)) & magnitude);
    if (i < n)
        largest = max(largest, as_int(load(from + i, lanes_from(i, n))) & magnitude);
    const F32 as_floats = as_float(largest);
    return any(!less(as_floats, broadcast(__builtin_inff()))) ? __builtin_nanf("")
                                                              : reduce_max(as_floats);
}

// Quantizes n numbers into row m of `to`.
PENSTOCK_INLINE void narrow_row(const float* from, int64_t n, const Narrow& to, int64_t m) {
    constexpr float kMax = 32767.0f, kLeast = 1e-30f; // a smaller maximum has no finite inverse
    const float largest = largest_of(from, n);
    const bool usable = largest > kLeast;
    const F32 inverse = broadcast(kMax / largest);
    const auto narrowed = [&](F32 x) { return to_int(x * inverse); };
    int16_t* values = to.row(m);
    int64_t i = 0;
    for (; usable && i + kLanes <= n; i += kLanes)
        store_i16(values + i, narrowed(load(from + i)));
    for (; i < to.columns; i += kLanes) {
        const bool given = usable && i < n;
        const F32 x = given ? load_lanes(from + i, lanes_from(i, n)) : broadcast(0.0f);
        store_i16(values + i, given ? narrowed(x) : broadcast(int32_t{0}));
    }
    to.scale[m] = usable ? largest / kMax : largest < kLeast ? 0.0f : largest;
}

// Divides 0 .. count into consecutive ranges of at most `most` elements and calls f(range) for
// each.
template <class Function>
PENSTOCK_INLINE void each_range(int64_t count, int64_t most, const Function& f) {
    for (int64_t i = 0; i < count; i += most)
        f(Range{i, i + most < count ? i + most : count});
}

// Computes (A x) for ranks first .. first + kRanks - 1 of a block of A and kRows rows from row `m`
// of `x` on, over a range of the tiles.
template <int kRows, int kRanks>
PENSTOCK_INLINE void shrink_exactly(const Arguments& call, const Task& task, const Narrow& x,
                                    int64_t m, int64_t index, int first, Range part) {
    constexpr int64_t kTileItems = kAdapterRanks * kAdapterTile;
    const int64_t tiles = ceil_div(call.tensor[0].shape[1], kAdapterTile);
    const int8_t* tile = static_cast<const int8_t*>(task.slice->a) +
                         (index * tiles + part.begin) * kTileItems + first * kAdapterTile;
    const int16_t* from = x.row(m) + part.begin * kAdapterTile;
    I32 sum[kRows][kRanks] = {};
    for (int64_t i = part.begin; i < part.end; ++i, tile += kTileItems, from += kAdapterTile) {
        prefetch_ahead<kRanks * kAdapterTile>(tile);
        unrolled<kAdapterTile / (2 * kLanes)>([&](auto v) {
            constexpr int k = decltype(v)::value * 2 * kLanes;
            Int16Pairs value[kRows];
            unrolled<kRows>([&](auto row) {
                value[row.value] = load_int16_pairs(from + row.value * x.columns + k);
            });
            unrolled<kRanks>([&](auto r) {
                const Int16Pairs weight = load_int8_pairs(tile + r.value * kAdapterTile + k);
                unrolled<kRows>([&](auto row) {
                    I32& s = sum[row.value][r.value];
                    s = add_int16_pairs(s, weight, value[row.value]);
                });
            });
        });
    }
    const int64_t rank = index * kAdapterRanks + first;
    for (int row = 0; row < kRows; ++row) {
        float* to = call.tensor[5].row<float>(task.begin + m + row) + task.inner + rank;
        for (int r = 0; r < kRanks; ++r) {
            const float scale = x.scale[m + row] * task.slice->scale[rank + r];
            const float product = reduce_add(to_float(sum[row][r])) * scale;
            to[r] = part.begin == 0 ? product : to[r] + product;
        }
    }
}

// Adds to y the products of kRows rows, from row `m` of `inner` on, with kPackedTiles packed tiles
// from `packed_tile` on, over a range of ranks.
template <int kRows, int kPackedTiles>
PENSTOCK_INLINE void expand_exactly(const Arguments& call, const Task& task, const Narrow& inner,
                                    int64_t m, int64_t packed_tile, Range part) {
    constexpr int kVectors = kPackedTiles * kAdapterOutputTile / kLanes;
    constexpr int kOfPackedTile = kAdapterOutputTile / kLanes;
    const int32_t* order = call.tensor[2].row<int32_t>(0) + task.begin + m;
    const int64_t packed_tile_items = padded_to(task.slice->rank, 2) * kAdapterOutputTile;
    const auto* b = static_cast<const int8_t*>(task.slice->b) + packed_tile * packed_tile_items;
    const int16_t* from = inner.row(m);
    I32 sum[kRows][kVectors] = {};
    for (int64_t r = part.begin; r < part.end; r += 2) {
        Int16Pairs value[kRows];
        unrolled<kRows>([&](auto row) {
            value[row.value] = broadcast_int16_pair(from + row.value * inner.columns + r);
        });
        for (int p = 0; p < kPackedTiles;
             ++p) // not in a lambda, from which GCC 12 drops the prefetch
            prefetch_ahead<2 * kAdapterOutputTile>(b + p * packed_tile_items +
                                                   r * kAdapterOutputTile);
        unrolled<kVectors>([&](auto v) {
            constexpr int p = decltype(v)::value / kOfPackedTile,
                          n = decltype(v)::value % kOfPackedTile;
            const Int16Pairs weight = load_int8_pairs(b + p * packed_tile_items +
                                                      r * kAdapterOutputTile + n * 2 * kLanes);
            unrolled<kRows>([&](auto row) {
                I32& s = sum[row.value][v.value];
                s = add_int16_pairs(s, weight, value[row.value]);
            });
        });
    }
    for (int row = 0; row < kRows; ++row) {
        float* to = call.tensor[1].row<float>(order[row]) + task.shape->column;
        const F32 scale = broadcast(inner.scale[m + row]);
        for (int v = 0; v < kVectors; ++v) {
            const int64_t n = packed_tile * kAdapterOutputTile + v * kLanes;
            if (n >= task.shape->rows)
                break;
            const int lanes = lanes_from(n, task.shape->rows);
            const F32 before = load_lanes(to + n, lanes);
            store_lanes(to + n, fma(to_float(sum[row][v]), scale, before), lanes);
        }
    }
}

PENSTOCK_INLINE void shrink_exactly(const Arguments& call, const Task& task, const Narrow& x,
                                    int64_t block, Range part) {
    const int64_t rows = task.end - task.begin;
    int64_t m = 0;
    for (; m + 2 <= rows; m += 2) {
        shrink_exactly<2, 4>(call, task, x, m, block, 0, part);
        shrink_exactly<2, 4>(call, task, x, m, block, 4, part);
    }
    if (m < rows)
        shrink_exactly<1, 8>(call, task, x, m, block, 0, part);
}

PENSTOCK_INLINE void expand_exactly(const Arguments& call, const Task& task, const Narrow& inner,
                                    Range part) {
    const Range packed_tiles = packed_tiles_of(task);
    const int64_t rows = task.end - task.begin;
    int64_t m = 0;
    for (; m + 2 <= rows; m += 2) {
        for (int64_t packed_tile = packed_tiles.begin; packed_tile < packed_tiles.end;
             ++packed_tile)
            expand_exactly<2, 1>(call, task, inner, m, packed_tile, part);
    }
    if (m == rows)
        return;
    int64_t packed_tile = packed_tiles.begin;
    for (; packed_tile + 2 <= packed_tiles.end; packed_tile += 2)
        expand_exactly<1, 2>(call, task, inner, m, packed_tile, part);
    if (packed_tile < packed_tiles.end)
        expand_exactly<1, 1>(call, task, inner, m, packed_tile, part);
}

template <>
struct Products<int8_t> {
    static size_t workspace_bytes(const Arguments& call) {
        const auto* table = static_cast<const AdapterTable*>(call.object);
        return narrow_bytes(call.tensor[0].shape[1]) + narrow_bytes(table->max_rank);
    }

    static void take_input(const Arguments& call, int64_t begin, int64_t end,
                           Workspace& workspace) {
        const TensorView& x = call.tensor[0];
        const int32_t* order = call.tensor[2].row<int32_t>(0);
        const Narrow to = narrow_input(call, workspace);
        for (int64_t at = begin; at < end; ++at)
            narrow_row(x.row<float>(order[at]), x.shape[1], to, at - begin);
    }

    static void shrink(const Arguments& call, const Task& task, Workspace& workspace) {
        const Narrow x = narrow_input(call, workspace);
        const Range blocks = rank_blocks(task);
        each_range(ceil_div(call.tensor[0].shape[1], kAdapterTile), kExactTiles, [&](Range part) {
            for (int64_t block = blocks.begin; block < blocks.end; ++block)
                shrink_exactly(call, task, x, block, part);
        });
    }

    static void expand(const Arguments& call, const Task& task, Workspace& workspace) {
        const int64_t rank = task.slice->rank;
        const Narrow inner = narrow_inner(call, workspace, rank);
        for (int64_t at = task.begin; at < task.end; ++at)
            narrow_row(call.tensor[5].row<float>(at) + task.inner, rank, inner, at - task.begin);
        each_range(padded_to(rank, 2), kExactRanks,
                   [&](Range part) { expand_exactly(call, task, inner, part); });
    }
};

} // namespace lora
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
