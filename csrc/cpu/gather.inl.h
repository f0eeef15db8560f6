// Selected rows of a tensor. Included by the level files.
//
//   gather_rows  tensors: x [T, W] float32, rows [S] int32 in 0..T-1, out [S, W] float32
#pragma once

#include <cstring>

#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {
namespace gather {

constexpr int64_t elements_per_task = 65536;

int64_t rows_per_task(int64_t width) {
    return width >= elements_per_task ? 1 : elements_per_task / width;
}

int phases(const Arguments&) {
    return 1;
}

int64_t tasks(const Arguments& call, int) {
    const int64_t rows = rows_per_task(call.tensor[2].shape[1]);
    return (call.tensor[2].shape[0] + rows - 1) / rows;
}

size_t workspace_bytes(const Arguments&) {
    return 0;
}

void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &out = call.tensor[2];
    const int32_t* rows_wanted = call.tensor[1].row<int32_t>(0);
    const int64_t width = out.shape[1], rows = rows_per_task(width), first = task * rows;
    for (int64_t row = first; row < first + rows && row < out.shape[0]; ++row) {
        std::memcpy(out.row<float>(row), x.row<float>(rows_wanted[row]),
                    static_cast<size_t>(width) * sizeof(float));
    }
}

} // namespace gather

constexpr Kernel kGatherKernels[] = {
    {"gather_rows", gather::phases, gather::tasks, gather::run, gather::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
