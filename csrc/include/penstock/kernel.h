// What a CPU kernel is: pure functions over one call's arguments, cut into tasks that any thread
// may run. Checks happen in bind/, never here. No allocation, no lock, no I/O inside a kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/tensor_view.h"

namespace penstock {

// One call. A kernel documents its own order of tensors, integers and reals beside its table entry.
// `object` is an immutable packed weight (or null). The number of rows of a tensor with a free
// dimension is filled in per step before the kernel sees it.
struct Arguments {
    std::array<TensorView, 16> tensor{};
    std::array<int64_t, 8> integer{};
    std::array<float, 4> real{};
    const void* object = nullptr;
};

// Scratch of the thread that runs a task: at least `bytes` bytes, 64-byte aligned, contents
// undefined at the start of each task.
struct Workspace {
    void* data = nullptr;
    size_t bytes = 0;
};

// Work is done in phases with a barrier after each. Within a phase tasks are independent and may
// run in any order on any thread; the result must not depend on either. A row's result must not
// depend on the other rows of the call, nor on how many there are.
struct Kernel {
    const char* name;
    int (*phases)(const Arguments&);
    int64_t (*tasks)(const Arguments&, int phase);
    void (*run)(const Arguments&, int phase, int64_t task, Workspace&);
    size_t (*workspace_bytes)(const Arguments&); // per thread, at the largest step
    // Rows [a, b) of the tensors that have a row for every token, beside the others whole, give
    // rows [a, b) of the results: so rows can go through several such kernels in blocks.
    bool row_wise = false;
};

} // namespace penstock
