// Pools the tokens of a sequence to one vector. Included by the ISA files.
//
//   mean_rows     tensors: x [T, W] float32, starts [R + 1] int32 ascending from 0 to T,
//                          out [R, W] float32: the mean of rows starts[r] .. starts[r + 1] - 1
//   l2_normalize  tensors: x [R, W], out [R, W]; float32: x / max(|x|, 1e-12)
//
// A column of a mean is summed in ascending order of rows. An empty sequence gives NaN.
#pragma once

#include "cpu/ops/rms_norm.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace pooling {

int64_t mean_tasks(const Arguments& call, int) {
    return call.tensor[2].shape[0];
}

void mean_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &out = call.tensor[2];
    const int32_t* starts = call.tensor[1].row<int32_t>(0);
    const int64_t begin = starts[task], end = starts[task + 1], width = x.shape[1];
    const F32 count = broadcast(static_cast<float>(end - begin));
    float* to = out.row<float>(task);
    for (int64_t i = 0; i < width; i += kLanes) {
        const int n = lanes_from(i, width);
        F32 sum = broadcast(0.0f);
        for (int64_t row = begin; row < end; ++row)
            sum = sum + load_lanes(x.row<float>(row) + i, n);
        store_lanes(to + i, sum / count, n);
    }
}

void normalize_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &out = call.tensor[1];
    const int64_t width = x.shape[1];
    norm::Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        float* to = out.row<float>(row);
        F32 squares = broadcast(0.0f);
        for (int64_t i = 0; i < width; i += kLanes) {
            const F32 v = load_lanes(from + i, lanes_from(i, width));
            squares = fma(v, v, squares);
        }
        const float length = __builtin_sqrtf(reduce_add(squares));
        const F32 divisor = broadcast(length < 1e-12f ? 1e-12f : length);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int n = lanes_from(i, width);
            store_lanes(to + i, load_lanes(from + i, n) / divisor, n);
        }
    });
}

} // namespace pooling

constexpr Kernel kPoolingKernels[] = {
    {"mean_rows", one_phase, pooling::mean_tasks, pooling::mean_run, no_workspace},
    {"l2_normalize", one_phase, norm::tasks, pooling::normalize_run, no_workspace},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
