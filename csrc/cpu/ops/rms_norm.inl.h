// RMSNorm, alone, fused with a residual addition, and of some columns. Included by the ISA files.
//
//   rms_norm      tensors: x [T, W], weight [W], out [T, W]; all float32
//                 reals:   eps
//   add_rms_norm  tensors: x [T, W], residual [T, W], weight [W], out [T, W], sum [T, W]
//                 reals:   eps
//   norm_columns  tensors:  x [T, W], weight [columns]; float32
//                 integers: first, group
//                 reals:    eps
//
// norm_columns replaces the columns first .. first + columns of x, each `group` of them by its
// RMSNorm.
//
// The squares of a row have 4 * kLanes partial sums that are folded in a fixed order, so that a
// row's bits do not depend on the batch. Rows may be strided; `out` may be `x`.
#pragma once

#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace norm {

using Tasks = RowTasks<16384>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], call.tensor[0].shape[1]);
}

// Returns 1 / sqrt(mean(x^2) + eps) of a row. value(i, n) must return n lanes from element i of the
// row, with zeros after them.
template <class Value>
PENSTOCK_INLINE float inverse_rms(int64_t width, float eps, Value value) {
    F32 partial[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
        for (int k = 0; k < 4; ++k) {
            const F32 v = value(i + k * kLanes, kLanes);
            partial[k] = fma(v, v, partial[k]);
        }
    }
    for (; i < width; i += kLanes) {
        const F32 v = value(i, lanes_from(i, width));
        partial[0] = fma(v, v, partial[0]);
    }
    const F32 total = (partial[0] + partial[1]) + (partial[2] + partial[3]);
    return 1.0f / __builtin_sqrtf(reduce_add(total) / static_cast<float>(width) + eps);
}

PENSTOCK_INLINE void scale_row(const float* x, const float* weight, float inverse, int64_t width,
                               float* out) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int n = lanes_from(i, width);
        const F32 scaled = load_lanes(x + i, n) * broadcast(inverse);
        store_lanes(out + i, scaled * load_lanes(weight + i, n), n);
    }
}

void rms_norm_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &weight = call.tensor[1], &out = call.tensor[2];
    const int64_t width = x.shape[1];
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        const float inverse = inverse_rms(
            width, call.real[0], [&](int64_t i, int n) { return load_lanes(from + i, n); });
        scale_row(from, weight.row<float>(0), inverse, width, out.row<float>(row));
    });
}

void add_rms_norm_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &residual = call.tensor[1], &weight = call.tensor[2];
    const TensorView &out = call.tensor[3], &sum = call.tensor[4];
    const int64_t width = x.shape[1];
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float *a = x.row<float>(row), *b = residual.row<float>(row);
        float* total = sum.row<float>(row);
        const float inverse = inverse_rms(width, call.real[0], [&](int64_t i, int n) {
            const F32 v = load_lanes(a + i, n) + load_lanes(b + i, n);
            store_lanes(total + i, v, n);
            return v;
        });
        scale_row(total, weight.row<float>(0), inverse, width, out.row<float>(row));
    });
}

int64_t column_tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], call.tensor[1].shape[0]);
}

void norm_columns_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &weight = call.tensor[1];
    const int64_t columns = weight.shape[0], first = call.integer[0], group = call.integer[1];
    Tasks::each(task, x.shape[0], columns, [&](int64_t row) {
        for (int64_t start = 0; start < columns; start += group) {
            float* part = x.row<float>(row) + first + start;
            const float inverse = inverse_rms(
                group, call.real[0], [&](int64_t i, int n) { return load_lanes(part + i, n); });
            scale_row(part, weight.row<float>(0) + start, inverse, group, part);
        }
    });
}

} // namespace norm

constexpr Kernel kNormKernels[] = {
    {"rms_norm", one_phase, norm::tasks, norm::rms_norm_run, no_workspace, true},
    {"add_rms_norm", one_phase, norm::tasks, norm::add_rms_norm_run, no_workspace, true},
    {"norm_columns", one_phase, norm::column_tasks, norm::norm_columns_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
