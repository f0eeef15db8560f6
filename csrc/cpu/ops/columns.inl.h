// Norms of some columns of a row, in place. Included by the ISA files.
//
//   norm_columns  tensors:  x [T, W], weight [columns]; float32
//                 integers: first, group
//                 reals:    eps
//
// norm_columns replaces the columns first .. first + columns of x: each `group` of them is divided
// by sqrt(mean(x^2) + eps) and multiplied by its weights. Rows may be strided.
#pragma once

#include "cpu/ops/rms_norm.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace columns {

int64_t norm_tasks(const Arguments& call, int) {
    return norm::Tasks::count(call.tensor[0].shape[0], call.tensor[1].shape[0]);
}

void norm_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &weight = call.tensor[1];
    const int64_t columns = weight.shape[0], first = call.integer[0], group = call.integer[1];
    norm::Tasks::each(task, x.shape[0], columns, [&](int64_t row) {
        for (int64_t start = 0; start < columns; start += group) {
            float* part = x.row<float>(row) + first + start;
            const float inverse = norm::inverse_rms(
                group, call.real[0], [&](int64_t i, int n) { return load_lanes(part + i, n); });
            norm::scale_row(part, weight.row<float>(0) + start, inverse, group, part);
        }
    });
}

} // namespace columns

constexpr Kernel kColumnKernels[] = {
    {"norm_columns", one_phase, columns::norm_tasks, columns::norm_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
