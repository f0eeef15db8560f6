// The gated activation of a feed-forward block. Included by the level files.
//
//   silu_mul  tensors: gate_up [T, 2 F] (gate, then up), out [T, F]; float32
//
// silu(g) = g / (1 + exp(-g)). Elements are independent; rows may be strided.
#pragma once

#include "cpu/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {
namespace activation {

// About 5 us of work: less is not worth waking a thread for.
constexpr int64_t elements_per_task = 8192;

int64_t rows_per_task(int64_t width) {
    return width >= elements_per_task ? 1 : elements_per_task / width;
}

int phases(const Arguments&) {
    return 1;
}

int64_t tasks(const Arguments& call, int) {
    const int64_t rows = rows_per_task(call.tensor[1].shape[1]);
    return (call.tensor[1].shape[0] + rows - 1) / rows;
}

size_t workspace_bytes(const Arguments&) {
    return 0;
}

PENSTOCK_INLINE F32 silu_times(F32 gate, F32 up) {
    return gate / (broadcast(1.0f) + exp(-gate)) * up;
}

void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &gate_up = call.tensor[0], &out = call.tensor[1];
    const int64_t width = out.shape[1], rows = rows_per_task(width), first = task * rows;
    for (int64_t row = first; row < first + rows && row < out.shape[0]; ++row) {
        const float *gate = gate_up.row<float>(row), *up = gate + width;
        float* to = out.row<float>(row);
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes) {
            store(to + i, silu_times(load(gate + i), load(up + i)));
        }
        if (i < width) {
            const int n = static_cast<int>(width - i);
            store(to + i, silu_times(load(gate + i, n), load(up + i, n)), n);
        }
    }
}

} // namespace activation

constexpr Kernel kActivationKernels[] = {
    {"silu_mul", activation::phases, activation::tasks, activation::run,
     activation::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
