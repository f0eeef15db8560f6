// The interface of a CPU kernel: pure functions of a call's arguments, divided into tasks that any
// thread may run. Arguments are checked in bind/, never in a kernel. Kernels do not allocate, lock
// or do I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/tensor_view.h"

namespace penstock {

// The arguments of one call. Each kernel documents the order of its tensors, integers and reals
// beside its table entry. `object` is an immutable packed weight or null. The number of rows of a
// tensor with a free dimension is filled in for each step before the kernel runs.
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
// run in any order on any thread; the result must not depend on either. The result of a row must
// not depend on the other rows of the call, nor on their number.
struct Kernel {
    const char* name;
    int (*phases)(const Arguments&);
    int64_t (*tasks)(const Arguments&, int phase);
    void (*run)(const Arguments&, int phase, int64_t task, Workspace&);
    size_t (*workspace_bytes)(const Arguments&); // per thread, at the largest step
    // True if rows [a, b) of the per-token tensors, with all other tensors whole, give rows [a, b)
    // of the results, so that blocks of rows can pass through several such kernels in turn.
    bool row_wise = false;
};

} // namespace penstock
