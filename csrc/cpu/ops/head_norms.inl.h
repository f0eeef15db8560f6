// Norms of heads outside `rope_cache`. Included by the ISA files.
//
//   norm_values  tensors:  x [T, C], out [T, (H + 2 K) * D]; float32: q and k, which are the first
//                          H + K heads of x, and the last K heads of x, each divided by the root of
//                          its mean square. C is (H + 2 K) * D, or (H + K) * D if values are keys
//                integers: H, K, D
//                reals:    eps
//   norm_rope    tensors:  x [T, N] float32, weight [D] float32, rope [positions, rotated] float32
//                          (cosines, then sines), positions [T] int32, out [T, N] float32: RMSNorm
//                          and rotation of each head, as in norm_rope_cache. N is a multiple of D
//                reals:    eps
//
// Rows may be strided; `out` must not be `x`.
#pragma once

#include <cstring>

#include "cpu/ops/rope.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace head_norms {

using Tasks = RowTasks<8192>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], call.tensor[0].shape[1]);
}

// Computes to = x / sqrt(mean(x^2) + eps).
PENSTOCK_INLINE void normalise(const float* x, float eps, int64_t dim, float* to) {
    F32 squares = broadcast(0.0f);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const F32 v = load_lanes(x + i, lanes_from(i, dim));
        squares = fma(v, v, squares);
    }
    const float mean = reduce_add(squares) / static_cast<float>(dim);
    const F32 inverse = broadcast(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        store_lanes(to + i, load_lanes(x + i, n) * inverse, n);
    }
}

void norm_values_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &out = call.tensor[1];
    const int64_t kv_heads = call.integer[1], dim = call.integer[2], width = x.shape[1];
    const int64_t unchanged = (call.integer[0] + kv_heads) * dim;
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        float* to = out.row<float>(row);
        std::memcpy(to, from, static_cast<size_t>(unchanged) * sizeof(float));
        for (int64_t h = 0; h < kv_heads; ++h) {
            const float* head = from + width - (kv_heads - h) * dim;
            normalise(head, call.real[0], dim, to + unchanged + h * dim);
        }
    });
}

size_t norm_rope_workspace(const Arguments& call) {
    return static_cast<size_t>(call.tensor[1].shape[0] + kLanes) * sizeof(float);
}

void norm_rope_run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const TensorView &x = call.tensor[0], &table = call.tensor[2], &out = call.tensor[4];
    const float* weight = call.tensor[1].row<float>(0);
    const int32_t* positions = call.tensor[3].row<int32_t>(0);
    const int64_t dim = call.tensor[1].shape[0], width = x.shape[1];
    auto* normal = static_cast<float*>(workspace.data);
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float *from = x.row<float>(row), *cosine = table.row<float>(positions[row]);
        float* to = out.row<float>(row);
        for (int64_t first = 0; first < width; first += dim) {
            rope::normalise(from + first, weight, call.real[0], dim, normal);
            rope::rotate(normal, cosine, table.shape[1], dim, to + first);
        }
    });
}

} // namespace head_norms

constexpr Kernel kHeadNormKernels[] = {
    {"norm_values", one_phase, head_norms::tasks, head_norms::norm_values_run, no_workspace, true},
    {"norm_rope", one_phase, head_norms::tasks, head_norms::norm_rope_run,
     head_norms::norm_rope_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
