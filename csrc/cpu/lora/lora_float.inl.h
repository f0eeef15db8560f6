// LoRA products with float factors. Included by lora.inl.h.
//
// (A x)[r] is summed over k in order within each lane, then over the lanes in reduce_add's order.
// (B inner)[n] is a chain of fma over r in order, and is then added to y.
#pragma once

#include "cpu/lora/lora_task.h"
#include "cpu/simd/math.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace lora {

PENSTOCK_INLINE F32 widen(const float* p) {
    return load(p);
}
PENSTOCK_INLINE F32 widen(const uint16_t* p) {
    return load_f16(p);
}

// Adds products over one tile: sum[m][r] += row m of x times rank first + r of a block of A.
template <int kRows, int kRanks, class Load, class Stored>
PENSTOCK_INLINE void add_tile(const Load& x, const Stored* tile, F32 (&sum)[kRows][kRanks]) {
    unrolled<kAdapterTile / kLanes>([&](auto v) {
        constexpr int k = decltype(v)::value * kLanes;
        F32 value[kRows];
        unrolled<kRows>([&](auto m) { value[m.value] = x(m.value, k); });
        unrolled<kRanks>([&](auto r) {
            const F32 weight = widen(tile + r.value * kAdapterTile + k);
            unrolled<kRows>([&](auto m) {
                F32& s = sum[m.value][r.value];
                s = fma(weight, value[m.value], s);
            });
        });
    });
}

// Computes (A x) for ranks first .. first + kRanks - 1 of a block of A and kRows rows.
template <int kRows, int kRanks, class Stored>
PENSTOCK_INLINE void shrink_some(const Arguments& call, const Task& task, int64_t at, int64_t index,
                                 int first) {
    constexpr int64_t kTileItems = kAdapterRanks * kAdapterTile;
    const TensorView &x = call.tensor[0], &inner = call.tensor[5];
    const int32_t* order = call.tensor[2].row<int32_t>(0);
    const int64_t depth = x.shape[1], tiles = ceil_div(depth, kAdapterTile);
    const auto* block = static_cast<const Stored*>(task.slice->a) + index * tiles * kTileItems;
    const Stored* tile = block + first * kAdapterTile;
    const float* rows[kRows];
    for (int m = 0; m < kRows; ++m)
        rows[m] = x.row<float>(order[at + m]);
    F32 sum[kRows][kRanks] = {};
    int64_t k = 0;
    for (; k + kAdapterTile <= depth; k += kAdapterTile, tile += kTileItems) {
        prefetch_ahead<kRanks * kAdapterTile * int64_t{sizeof(Stored)}>(tile);
        add_tile([&](int m, int i) { return load(rows[m] + k + i); }, tile, sum);
    }
    if (k < depth) {
        const auto left = static_cast<int>(depth - k);
        const auto last = [&](int m, int i) {
            return i < left ? load_lanes(rows[m] + k + i, lanes_from(i, left)) : broadcast(0.0f);
        };
        add_tile(last, tile, sum);
    }
    const int64_t rank = index * kAdapterRanks + first;
    for (int m = 0; m < kRows; ++m) {
        float* to = inner.row<float>(at + m) + task.inner + rank;
        for (int r = 0; r < kRanks; ++r)
            to[r] = reduce_add(sum[m][r]) * task.slice->scale[rank + r];
    }
}

// Adds to y the products of kRows rows with kPackedTiles packed tiles from `packed_tile` on.
template <int kRows, int kPackedTiles, class Stored>
PENSTOCK_INLINE void expand_some(const Arguments& call, const Task& task, int64_t at,
                                 int64_t packed_tile) {
    constexpr int kVectors = kPackedTiles * kAdapterOutputTile / kLanes;
    constexpr int kOfPackedTile = kAdapterOutputTile / kLanes;
    const TensorView &y = call.tensor[1], &inner = call.tensor[5];
    const int32_t* order = call.tensor[2].row<int32_t>(0);
    const int64_t rank = task.slice->rank, packed_tile_items = rank * kAdapterOutputTile;
    const auto* b = static_cast<const Stored*>(task.slice->b) + packed_tile * packed_tile_items;
    const float* from[kRows];
    for (int m = 0; m < kRows; ++m)
        from[m] = inner.row<float>(at + m) + task.inner;
    F32 sum[kRows][kVectors] = {};
    for (int64_t r = 0; r < rank; ++r) {
        F32 value[kRows];
        unrolled<kRows>([&](auto m) { value[m.value] = broadcast(from[m.value][r]); });
        for (int p = 0; p < kPackedTiles;
             ++p) // not in a lambda, from which GCC 12 drops the prefetch
            prefetch_ahead<kAdapterOutputTile * int64_t{sizeof(Stored)}>(b + p * packed_tile_items +
                                                                         r * kAdapterOutputTile);
        unrolled<kVectors>([&](auto v) {
            constexpr int p = decltype(v)::value / kOfPackedTile,
                          i = decltype(v)::value % kOfPackedTile;
            const F32 weight =
                widen(b + p * packed_tile_items + r * kAdapterOutputTile + i * kLanes);
            unrolled<kRows>([&](auto m) {
                F32& s = sum[m.value][v.value];
                s = fma(weight, value[m.value], s);
            });
        });
    }
    for (int m = 0; m < kRows; ++m) {
        float* to = y.row<float>(order[at + m]) + task.shape->column;
        for (int v = 0; v < kVectors; ++v) {
            const int64_t n = packed_tile * kAdapterOutputTile + v * kLanes;
            if (n >= task.shape->rows)
                break;
            const int lanes = lanes_from(n, task.shape->rows);
            store_lanes(to + n, load_lanes(to + n, lanes) + sum[m][v], lanes);
        }
    }
}

// The products of the kernel `lora` for factors stored as `Stored`.
template <class Stored>
struct Products {
    // Prepares the input of tasks of these rows. Does nothing: float products read x as float32.
    // Called before `shrink`, with the same workspace.
    static void take_input(const Arguments&, int64_t, int64_t, Workspace&) {}

    static void shrink(const Arguments& call, const Task& task, Workspace&) {
        const Range blocks = rank_blocks(task);
        for (int64_t block = blocks.begin; block < blocks.end; ++block) {
            int64_t at = task.begin;
            for (; at + 2 <= task.end; at += 2) {
                shrink_some<2, 4, Stored>(call, task, at, block, 0);
                shrink_some<2, 4, Stored>(call, task, at, block, 4);
            }
            if (at < task.end)
                shrink_some<1, 8, Stored>(call, task, at, block, 0);
        }
    }

    static void expand(const Arguments& call, const Task& task, Workspace&) {
        const Range packed_tiles = packed_tiles_of(task);
        int64_t at = task.begin;
        for (; at + 2 <= task.end; at += 2) {
            for (int64_t packed_tile = packed_tiles.begin; packed_tile < packed_tiles.end;
                 ++packed_tile)
                expand_some<2, 1, Stored>(call, task, at, packed_tile);
        }
        if (at == task.end)
            return;
        int64_t packed_tile = packed_tiles.begin;
        for (; packed_tile + 2 <= packed_tiles.end; packed_tile += 2)
            expand_some<1, 2, Stored>(call, task, at, packed_tile);
        if (packed_tile < packed_tiles.end)
            expand_some<1, 1, Stored>(call, task, at, packed_tile);
    }
};

} // namespace lora
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
