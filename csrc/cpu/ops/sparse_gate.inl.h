// A feed-forward's activation that keeps only the largest gates. Included by the ISA files.
//
//   sparse_gelu_tanh_mul  tensors: gate_up [T, 2 F] (gate, then up), out [T, F]; float32
//                         reals:   deviations
//
// out = gelu(max(gate - cutoff, 0)) * up, with cutoff = mean + deviations * (standard deviation) of
// the gates of a row, and the tanh approximation of gelu. Rows may be strided.
#pragma once

#include "cpu/ops/activation.inl.h"
#include "cpu/ops/row_means.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sparse_gate {

using Tasks = RowTasks<8192>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[1].shape[0], call.tensor[1].shape[1]);
}

void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &gate_up = call.tensor[0], &out = call.tensor[1];
    const int64_t width = out.shape[1];
    Tasks::each(task, out.shape[0], width, [&](int64_t row) {
        const float *gate = gate_up.row<float>(row), *up = gate + width;
        float* to = out.row<float>(row);
        const float mean = mean_of(gate, width, [](F32 x) { return x; });
        const F32 center = broadcast(mean);
        const float variance =
            mean_of(gate, width, [&](F32 x) { return (x - center) * (x - center); });
        const F32 cutoff = broadcast(mean + call.real[0] * __builtin_sqrtf(variance));
        for (int64_t i = 0; i < width; i += kLanes) {
            const int n = lanes_from(i, width);
            const F32 kept = max(load_lanes(gate + i, n) - cutoff, broadcast(0.0f));
            store_lanes(to + i, activation::GeluTanh::of(kept) * load_lanes(up + i, n), n);
        }
    });
}

} // namespace sparse_gate

constexpr Kernel kSparseGateKernels[] = {
    {"sparse_gelu_tanh_mul", one_phase, sparse_gate::tasks, sparse_gate::run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
