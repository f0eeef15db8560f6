// LayerNorm, alone and fused with a residual addition. Included by the ISA files.
//
//   layer_norm      tensors: x [T, W], weight [W], bias [W], out [T, W]; all float32
//                   reals:   eps
//   add_layer_norm  tensors: x [T, W], residual [T, W], weight [W], bias [W], out [T, W],
//                            sum [T, W]
//                   reals:   eps
//
// out = (s - mean) / sqrt(variance + eps) * weight + bias, with s = x, or s = x + residual. The
// variance is the mean of squared distances from the mean, which needs two passes over a row in
// cache and avoids cancellation. Sums over a row have 4 * kLanes partial sums that are folded in a
// fixed order.
#pragma once

#include "cpu/ops/rms_norm.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace layer_norm {

// Returns the sum of value(i, n) over a row; value must return zeros past the row's end.
template <class Value>
PENSTOCK_INLINE float sum_of(int64_t width, Value value) {
    F32 partial[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
        for (int k = 0; k < 4; ++k)
            partial[k] = partial[k] + value(i + k * kLanes, kLanes);
    }
    for (; i < width; i += kLanes)
        partial[0] = partial[0] + value(i, lanes_from(i, width));
    return reduce_add((partial[0] + partial[1]) + (partial[2] + partial[3]));
}

PENSTOCK_INLINE void normalize(const float* row, float mean, const float* weight, const float* bias,
                               float eps, int64_t width, float* out) {
    const F32 center = broadcast(mean);
    const float squares = sum_of(width, [&](int64_t i, int n) {
        const F32 away = load_lanes(row + i, n) - center;
        return n == kLanes ? away * away : select(first(n), away * away, broadcast(0.0f));
    });
    const F32 inverse =
        broadcast(1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps));
    for (int64_t i = 0; i < width; i += kLanes) {
        const int n = lanes_from(i, width);
        const F32 scaled = (load_lanes(row + i, n) - center) * inverse;
        store_lanes(out + i, fma(scaled, load_lanes(weight + i, n), load_lanes(bias + i, n)), n);
    }
}

void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &weight = call.tensor[1], &bias = call.tensor[2];
    const TensorView& out = call.tensor[3];
    const int64_t width = x.shape[1];
    norm::Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        const float sum = sum_of(width, [&](int64_t i, int n) { return load_lanes(from + i, n); });
        normalize(from, sum / static_cast<float>(width), weight.row<float>(0), bias.row<float>(0),
                  call.real[0], width, out.row<float>(row));
    });
}

void add_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &residual = call.tensor[1], &weight = call.tensor[2];
    const TensorView &bias = call.tensor[3], &out = call.tensor[4], &total = call.tensor[5];
    const int64_t width = x.shape[1];
    norm::Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float *a = x.row<float>(row), *b = residual.row<float>(row);
        float* to = total.row<float>(row);
        const float sum = sum_of(width, [&](int64_t i, int n) {
            const F32 v = load_lanes(a + i, n) + load_lanes(b + i, n);
            store_lanes(to + i, v, n);
            return v;
        });
        normalize(to, sum / static_cast<float>(width), weight.row<float>(0), bias.row<float>(0),
                  call.real[0], width, out.row<float>(row));
    });
}

} // namespace layer_norm

constexpr Kernel kLayerNormKernels[] = {
    {"layer_norm", one_phase, norm::tasks, layer_norm::run, no_workspace, true},
    {"add_layer_norm", one_phase, norm::tasks, layer_norm::add_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
