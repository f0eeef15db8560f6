// LoRA adapters of many slots in one call. Included by the ISA files.
//
//   lora  tensors: x [T, K] float32, y [T, N] float32, added to in place; order [T] int32: rows
//                  of x and y, sorted by slot; starts [R + 1], slots [R] int32: rows
//                  order[starts[g] : starts[g + 1]] have the adapter of slots[g]; inner [T, H]
//                  float32, scratch
//         integer[0] the linear layer; integer[1] number of threads that will run the call (0:
//                  unknown), affects task sizes only; object: AdapterTable
//
// Computes inner = (A x) * scale, then y += B inner: in two phases, or in one phase whose tasks do
// both, if there are enough blocks of rows for all threads. A row's arithmetic is the same in both
// cases and does not depend on the row's group. Rows without an adapter are not changed.
#pragma once

#include "cpu/lora/adapter_table.h"
#include "cpu/lora/lora_float.inl.h"
#include "cpu/lora/lora_int8.inl.h"
#include "cpu/lora/lora_task.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace lora {

// Minimum row blocks per thread for a call in one phase: no thread is then idle for long.
constexpr int64_t kBlocksPerThread = 2;

// The linear layer of a call, and the call's groups of rows.
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

PENSTOCK_INLINE int64_t blocks_of(const Call& call, int64_t group) {
    return ceil_div(call.starts[group + 1] - call.starts[group], kBlockRows);
}

PENSTOCK_INLINE int64_t blocks_of(const Call& call) {
    int64_t count = 0;
    for (int64_t g = 0; g < call.groups; ++g)
        count += blocks_of(call, g);
    return count;
}

PENSTOCK_INLINE int64_t tasks_of_group(const Call& call, int64_t group, int phase) {
    const auto linear = call.linear - call.table->linears;
    const int64_t slot = call.slots[group];
    return call.table->tasks[slot * call.table->num_linears + linear].of_phase[phase];
}

int phases(const Arguments& arguments) {
    const Call call = call_of(arguments);
    if (call.starts[call.groups] == 0)
        return 0;
    const int64_t threads = arguments.integer[1] > 0 ? arguments.integer[1] : kDefaultThreads;
    return blocks_of(call) >= kBlocksPerThread * threads ? 1 : 2;
}

int64_t tasks(const Arguments& arguments, int phase) {
    const Call call = call_of(arguments);
    if (phases(arguments) == 1)
        return blocks_of(call);
    int64_t count = 0;
    for (int64_t g = 0; g < call.groups; ++g) {
        if (const int64_t blocks = blocks_of(call, g))
            count += blocks * tasks_of_group(call, g, phase);
    }
    return count;
}

// Returns the task of a group's rows in block `block`, at the first slice and chunk 0.
PENSTOCK_INLINE Task block_of(const Call& call, int64_t group, int64_t block) {
    const int64_t begin = call.starts[group] + block * kBlockRows;
    const int64_t last = call.starts[group + 1];
    return {call.table->slices + call.slots[group] * call.table->num_slices +
                call.linear->first_slice,
            call.table->shapes + call.linear->first_slice,
            0,
            begin,
            begin + kBlockRows < last ? begin + kBlockRows : last,
            0};
}

PENSTOCK_INLINE void go_to_next_slice(Task& task) {
    task.inner += padded_rank(task.slice->rank);
    ++task.slice;
    ++task.shape;
}

// Returns a task of a two-phase call. Blocks of rows vary slowest, so that neighbouring tasks read
// neighbouring weights.
PENSTOCK_INLINE Task part_of(const Call& call, int phase, int64_t index) {
    int64_t group = 0, chunks = 0;
    for (;; ++group) {
        const int64_t blocks = blocks_of(call, group);
        if (blocks == 0)
            continue;
        chunks = tasks_of_group(call, group, phase);
        if (index < blocks * chunks)
            break;
        index -= blocks * chunks;
    }
    Task task = block_of(call, group, index / chunks);
    task.chunk = index % chunks;
    while (task.chunk >= tasks_of(*task.slice, *task.shape, phase)) {
        task.chunk -= tasks_of(*task.slice, *task.shape, phase);
        go_to_next_slice(task);
    }
    return task;
}

// Calls f(task) for each task of a phase that has the rows of `task`.
template <class Function>
PENSTOCK_INLINE void each_part(const Call& call, Task task, int phase, const Function& f) {
    for (int32_t s = 0; s < call.linear->num_slices; ++s) {
        const int64_t chunks = tasks_of(*task.slice, *task.shape, phase);
        for (task.chunk = 0; task.chunk < chunks; ++task.chunk)
            f(task);
        go_to_next_slice(task);
    }
}

template <class Stored>
void run_block(const Arguments& arguments, int64_t index, Workspace& workspace) {
    using Of = Products<Stored>;
    const Call call = call_of(arguments);
    int64_t group = 0;
    for (; index >= blocks_of(call, group); ++group)
        index -= blocks_of(call, group);
    const Task block = block_of(call, group, index);
    Of::take_input(arguments, block.begin, block.end, workspace);
    each_part(call, block, 0, [&](const Task& task) { Of::shrink(arguments, task, workspace); });
    each_part(call, block, 1, [&](const Task& task) { Of::expand(arguments, task, workspace); });
}

template <class Stored>
void run_as(const Arguments& arguments, int phase, int64_t index, Workspace& workspace) {
    using Of = Products<Stored>;
    if (phases(arguments) == 1) {
        run_block<Stored>(arguments, index, workspace);
        return;
    }
    const Task task = part_of(call_of(arguments), phase, index);
    if (phase == 0) {
        Of::take_input(arguments, task.begin, task.end, workspace);
        Of::shrink(arguments, task, workspace);
    } else {
        Of::expand(arguments, task, workspace);
    }
}

void run(const Arguments& call, int phase, int64_t index, Workspace& workspace) {
    switch (static_cast<const AdapterTable*>(call.object)->dtype) {
    case AdapterDType::f32: run_as<float>(call, phase, index, workspace); break;
    case AdapterDType::f16: run_as<uint16_t>(call, phase, index, workspace); break;
    case AdapterDType::i8: run_as<int8_t>(call, phase, index, workspace); break;
    }
}

size_t workspace_bytes(const Arguments& call) {
    return Products<int8_t>::workspace_bytes(call);
}

} // namespace lora

constexpr Kernel kLoraKernels[] = {
    {"lora", lora::phases, lora::tasks, lora::run, lora::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
