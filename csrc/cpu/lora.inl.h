// Low-rank adapters of many slots in one call. Included by the level files.
//
//   lora  tensors: x [T, K] float32, y [T, N] float32, added to in place; order [T] int32: rows
//                  of x and y, sorted by slot; starts [R + 1], slots [R] int32: rows
//                  order[starts[g] : starts[g + 1]] have the adapter of slots[g]; inner [T, H]
//                  float32, scratch
//         integer[0] the linear layer; object: AdapterTable
//
// Two phases: inner = (A x) * scale, then y += B inner. A row's arithmetic, whatever its group has
// else: (A x)[r] sums lane by lane over k in order, then the lanes in reduce_add's order; (B
// inner)[n] is fma over r in order, then added to y once. A row without an adapter is not touched.
#pragma once

#include "cpu/adapter_table.h"
#include "cpu/linear_cut.h"
#include "cpu/math.inl.h"
#include "cpu/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {
namespace lora {

constexpr int64_t kBlockRows = 16; // rows of a task
// The factors of an adapter lie in memory in the order of the step. They are asked for twice: near,
// and so far ahead that they come from memory while the base model computes.
constexpr int64_t kAheadBytes = 4096;
constexpr int64_t kFarAheadBytes = 96 * 1024;
constexpr int64_t kLineBytes = 64;

PENSTOCK_INLINE F32 widen(const float* p) {
    return load(p);
}
PENSTOCK_INLINE F32 widen(const uint16_t* p) {
    return load_f16(p);
}
PENSTOCK_INLINE F32 widen(const int8_t* p) {
    return to_float(load_i8(p));
}

// What one task computes: rows order[begin .. end) of one slice, ranks or panels from `chunk` on.
struct Task {
    const AdapterSlice* slice;
    const AdapterSliceShape* shape;
    int64_t inner; // the slice's first column of `inner`
    int64_t begin;
    int64_t end;
    int64_t chunk;
};

// The slices of a call's linear layer, and the groups of its rows.
struct Call {
    const AdapterTable* table;
    const AdapterLinear* linear;
    const int32_t* starts;
    const int32_t* slots;
    int64_t groups;
};

PENSTOCK_INLINE Call call_of(const Arguments& arguments) {
    const auto* table = static_cast<const AdapterTable*>(arguments.object);
    return {table, table->linears + arguments.integer[0], arguments.tensor[3].row<int32_t>(0),
            arguments.tensor[4].row<int32_t>(0), arguments.tensor[4].shape[0]};
}

PENSTOCK_INLINE const AdapterSlice* slices_of(const Call& call, int64_t group) {
    return call.table->slices + call.slots[group] * call.table->num_slices +
           call.linear->first_slice;
}

PENSTOCK_INLINE int64_t tasks_of_group(const Call& call, int64_t group, int phase) {
    const auto linear = call.linear - call.table->linears;
    const int64_t slot = call.slots[group];
    return call.table->tasks[slot * call.table->num_linears + linear].of_phase[phase];
}

int phases(const Arguments& arguments) {
    const Call call = call_of(arguments);
    return call.starts[call.groups] > 0 ? 2 : 0;
}

int64_t tasks(const Arguments& arguments, int phase) {
    const Call call = call_of(arguments);
    int64_t count = 0;
    for (int64_t g = 0; g < call.groups; ++g) {
        const int64_t rows = call.starts[g + 1] - call.starts[g];
        if (rows > 0)
            count += ceil_div(rows, kBlockRows) * tasks_of_group(call, g, phase);
    }
    return count;
}

// Blocks of rows vary slowest: neighbouring tasks read neighbouring weights.
PENSTOCK_INLINE Task task_of(const Arguments& arguments, int phase, int64_t index) {
    const Call call = call_of(arguments);
    int64_t group = 0, chunks = 0;
    for (;; ++group) {
        const int64_t rows = call.starts[group + 1] - call.starts[group];
        if (rows == 0)
            continue;
        chunks = tasks_of_group(call, group, phase);
        const int64_t count = ceil_div(rows, kBlockRows) * chunks;
        if (index < count)
            break;
        index -= count;
    }
    const AdapterSlice* slices = slices_of(call, group);
    const AdapterSliceShape* shapes = call.table->shapes + call.linear->first_slice;
    const int64_t begin = call.starts[group] + index / chunks * kBlockRows;
    const int64_t last = call.starts[group + 1];
    int64_t chunk = index % chunks, inner = 0;
    int s = 0;
    for (; chunk >= tasks_of(slices[s], shapes[s], phase); ++s) {
        chunk -= tasks_of(slices[s], shapes[s], phase);
        inner += padded_rank(slices[s].rank);
    }
    return {
        slices + s, shapes + s, inner, begin, begin + kBlockRows < last ? begin + kBlockRows : last,
        chunk};
}

template <int64_t bytes>
PENSTOCK_INLINE void prefetch_ahead(const void* from) {
    const auto* first = static_cast<const uint8_t*>(from);
    for (int64_t i = 0; i < bytes; i += kLineBytes) {
        prefetch(first + kAheadBytes + i);
        __builtin_prefetch(first + kFarAheadBytes + i, 0, 2);
    }
}

// sum[m][r] += row m of x with ranks first + r of a block of A, over one tile.
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

// Ranks first .. first + kRanks - 1 of a block of A, for kRows rows.
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

template <class Stored>
void shrink(const Arguments& call, const Task& task) {
    constexpr int64_t kTaskBlocks = kAdapterTaskRanks / kAdapterRanks;
    const int64_t begin = task.chunk * kTaskBlocks;
    const int64_t all = ceil_div(task.slice->rank, kAdapterRanks);
    const int64_t end = begin + kTaskBlocks < all ? begin + kTaskBlocks : all;
    for (int64_t block = begin; block < end; ++block) {
        int64_t at = task.begin;
        for (; at + 2 <= task.end; at += 2) {
            shrink_some<2, 4, Stored>(call, task, at, block, 0);
            shrink_some<2, 4, Stored>(call, task, at, block, 4);
        }
        if (at < task.end)
            shrink_some<1, 8, Stored>(call, task, at, block, 0);
    }
}

// Adds the products of `kPanels` panels from `panel` on to kRows rows.
template <int kRows, int kPanels, class Stored>
PENSTOCK_INLINE void expand_some(const Arguments& call, const Task& task, int64_t at,
                                 int64_t panel) {
    constexpr int kVectors = kPanels * kAdapterPanel / kLanes;
    constexpr int kOfPanel = kAdapterPanel / kLanes;
    const TensorView &y = call.tensor[1], &inner = call.tensor[5];
    const int32_t* order = call.tensor[2].row<int32_t>(0);
    const int64_t rank = task.slice->rank, panel_items = rank * kAdapterPanel;
    const auto* b = static_cast<const Stored*>(task.slice->b) + panel * panel_items;
    const float* from[kRows];
    for (int m = 0; m < kRows; ++m)
        from[m] = inner.row<float>(at + m) + task.inner;
    F32 sum[kRows][kVectors] = {};
    for (int64_t r = 0; r < rank; ++r) {
        F32 value[kRows];
        unrolled<kRows>([&](auto m) { value[m.value] = broadcast(from[m.value][r]); });
        unrolled<kPanels>([&](auto p) {
            constexpr int64_t kBytes = kAdapterPanel * int64_t{sizeof(Stored)};
            const int64_t item = p.value * panel_items + r * kAdapterPanel;
            if (kBytes >= kLineBytes || r % 2 == 0)
                prefetch_ahead<kBytes>(b + item);
        });
        unrolled<kVectors>([&](auto v) {
            constexpr int p = decltype(v)::value / kOfPanel, i = decltype(v)::value % kOfPanel;
            const F32 weight = widen(b + p * panel_items + r * kAdapterPanel + i * kLanes);
            unrolled<kRows>([&](auto m) {
                F32& s = sum[m.value][v.value];
                s = fma(weight, value[m.value], s);
            });
        });
    }
    for (int m = 0; m < kRows; ++m) {
        float* to = y.row<float>(order[at + m]) + task.shape->column;
        for (int v = 0; v < kVectors; ++v) {
            const int64_t n = panel * kAdapterPanel + v * kLanes;
            if (n >= task.shape->rows)
                break;
            const int lanes = lanes_from(n, task.shape->rows);
            store_lanes(to + n, load_lanes(to + n, lanes) + sum[m][v], lanes);
        }
    }
}

template <class Stored>
void expand(const Arguments& call, const Task& task) {
    constexpr int64_t kChunkPanels = kAdapterTaskRows / kAdapterPanel;
    const int64_t first = task.chunk * kChunkPanels;
    const int64_t all = ceil_div(task.shape->rows, kAdapterPanel);
    const int64_t last = first + kChunkPanels < all ? first + kChunkPanels : all;
    int64_t at = task.begin;
    for (; at + 2 <= task.end; at += 2) {
        for (int64_t panel = first; panel < last; ++panel)
            expand_some<2, 1, Stored>(call, task, at, panel);
    }
    if (at == task.end)
        return;
    int64_t panel = first;
    for (; panel + 2 <= last; panel += 2)
        expand_some<1, 2, Stored>(call, task, at, panel);
    if (panel < last)
        expand_some<1, 1, Stored>(call, task, at, panel);
}

void run(const Arguments& call, int phase, int64_t index, Workspace&) {
    const Task task = task_of(call, phase, index);
    switch (static_cast<const AdapterTable*>(call.object)->store) {
    case AdapterStore::f32:
        phase == 0 ? shrink<float>(call, task) : expand<float>(call, task);
        break;
    case AdapterStore::f16:
        phase == 0 ? shrink<uint16_t>(call, task) : expand<uint16_t>(call, task);
        break;
    case AdapterStore::i8:
        phase == 0 ? shrink<int8_t>(call, task) : expand<int8_t>(call, task);
        break;
    }
}

size_t workspace_bytes(const Arguments&) {
    return 0;
}

} // namespace lora

constexpr Kernel kLoraKernels[] = {
    {"lora", lora::phases, lora::tasks, lora::run, lora::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
