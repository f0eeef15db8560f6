// Sums, products and factors of elements. Included by the ISA files.
//
//   multiply    tensors: x [T, W], y [T, W], out [T, W]; float32: x * y
//   scaled_sum  likewise, (x + y) * scale
//               reals:   scale
//   scale_rows  tensors: x [T, W] float32, table [positions] float32, index [T] int32, out [T, W]
//                        float32: row t times table[index[t]]
//   soft_cap    tensors: x [T, F], out [T, F]; float32: cap * tanh(x / cap)
//               reals:   cap
//
// Rows may be strided; `out` may be `x`.
#pragma once

#include "cpu/ops/activation.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace elementwise {

using Tasks = RowTasks<16384>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], call.tensor[0].shape[1]);
}

// Calls compute(row, i, n) for each group of n lanes from element i of the rows of a task; it
// returns the result, which is stored in tensor `result`.
template <class Compute>
PENSTOCK_INLINE void each(const Arguments& call, int64_t task, int result, const Compute& compute) {
    const TensorView& out = call.tensor[result];
    const int64_t width = out.shape[1];
    Tasks::each(task, out.shape[0], width, [&](int64_t row) {
        float* to = out.row<float>(row);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int n = lanes_from(i, width);
            store_lanes(to + i, compute(row, i, n), n);
        }
    });
}

void multiply_run(const Arguments& call, int, int64_t task, Workspace&) {
    each(call, task, 2, [&](int64_t row, int64_t i, int n) {
        return load_lanes(call.tensor[0].row<float>(row) + i, n) *
               load_lanes(call.tensor[1].row<float>(row) + i, n);
    });
}

void scaled_sum_run(const Arguments& call, int, int64_t task, Workspace&) {
    const F32 scale = broadcast(call.real[0]);
    each(call, task, 2, [&](int64_t row, int64_t i, int n) {
        return (load_lanes(call.tensor[0].row<float>(row) + i, n) +
                load_lanes(call.tensor[1].row<float>(row) + i, n)) *
               scale;
    });
}

void scale_rows_run(const Arguments& call, int, int64_t task, Workspace&) {
    const float* table = call.tensor[1].row<float>(0);
    const int32_t* index = call.tensor[2].row<int32_t>(0);
    each(call, task, 3, [&](int64_t row, int64_t i, int n) {
        return load_lanes(call.tensor[0].row<float>(row) + i, n) * broadcast(table[index[row]]);
    });
}

void soft_cap_run(const Arguments& call, int, int64_t task, Workspace&) {
    const F32 cap = broadcast(call.real[0]), inverse = broadcast(1.0f / call.real[0]);
    each(call, task, 1, [&](int64_t row, int64_t i, int n) {
        return cap *
               activation::Tanh::of(load_lanes(call.tensor[0].row<float>(row) + i, n) * inverse);
    });
}

} // namespace elementwise

constexpr Kernel kElementwiseKernels[] = {
    {"multiply", one_phase, elementwise::tasks, elementwise::multiply_run, no_workspace, true},
    {"scaled_sum", one_phase, elementwise::tasks, elementwise::scaled_sum_run, no_workspace, true},
    {"scale_rows", one_phase, elementwise::tasks, elementwise::scale_rows_run, no_workspace, true},
    {"soft_cap", one_phase, elementwise::tasks, elementwise::soft_cap_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
