// Gathers selected rows of a tensor. Included by the ISA files.
//
//   gather_rows  tensors: x [T, W] float32, rows [S] int32 in 0..T-1, out [S, W] float32
#pragma once

#include <cstring>

#include "cpu/row_tasks.inl.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace gather {

using Tasks = RowTasks<65536>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[2].shape[0], call.tensor[2].shape[1]);
}

void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &out = call.tensor[2];
    const int32_t* rows_wanted = call.tensor[1].row<int32_t>(0);
    const int64_t width = out.shape[1];
    Tasks::each(task, out.shape[0], width, [&](int64_t row) {
        std::memcpy(out.row<float>(row), x.row<float>(rows_wanted[row]),
                    static_cast<size_t>(width) * sizeof(float));
    });
}

} // namespace gather

constexpr Kernel kGatherKernels[] = {
    {"gather_rows", one_phase, gather::tasks, gather::run, no_workspace},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
