// The interface of a CPU kernel: pure functions of a call's arguments, which divide the call into
// tasks that any thread may run. bind/ checks the arguments; kernels do not. Kernels do not
// allocate, lock or do I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/tensor_view.h"

namespace penstock {

// The arguments of one call. The comment at the start of each kernel family's file documents the
// order of tensors, integers and reals. `object` is immutable packed weights, adapters or null. The
// number of rows of a tensor with a free dimension is filled in for each step before the kernel
// runs.
struct Arguments {
    std::array<TensorView, 16> tensor{};
    std::array<int64_t, 8> integer{};
    std::array<float, 4> real{};
    const void* object = nullptr;
};

// Scratch memory of the thread that runs a task: at least `bytes` bytes, 64-byte aligned, contents
// undefined at the start of each task.
struct Workspace {
    void* data = nullptr;
    size_t bytes = 0;
};

// One kernel. It works in phases with a barrier after each. The tasks of a phase are independent
// and may run in any order on any thread; order and threads must not affect the result. The result
// of a row must not depend on the other rows of the call, nor on their number.
struct Kernel {
    const char* name;
    int (*phases)(const Arguments&);
    int64_t (*tasks)(const Arguments&, int phase);
    void (*run)(const Arguments&, int phase, int64_t task, Workspace&);
    size_t (*workspace_bytes)(const Arguments&); // per thread, for the largest step
    // True if a call with rows [a, b) of the per-token tensors, and all other tensors whole, gives
    // rows [a, b) of the results, so that blocks of rows can pass through several such kernels in
    // turn.
    bool row_wise = false;
};

} // namespace penstock
