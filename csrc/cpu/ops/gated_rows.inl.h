// Norms with a gate, gates, sums and relu^2. Included by the ISA files.
//
//   norm_then_gate, gate_then_norm  tensors:  x [T, W], gate [T, W], weight [W], out [T, W];
//   float32
//                                   integers: groups, equal parts of a row that are normalized on
//                                             their own
//                                   reals:    eps
//   sigmoid_mul   tensors: x [T, W], gate [T, W] or [T, 1], out [T, W]
//   silu_gate     tensors: x [T, W], gate [T, W], out [T, W]
//   add           tensors: x [T, W], y [T, W], out [T, W]
//   relu_squared  tensors: x [T, F], out [T, F]
//
// Rows may be strided.
#pragma once

#include "cpu/ops/activation.inl.h"
#include "cpu/ops/rms_norm.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace gated_rows {

using Tasks = RowTasks<8192>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], call.tensor[0].shape[1]);
}

// Calls f(i, n) for each vector of n elements of a row.
template <class Function>
PENSTOCK_INLINE void each_vector(int64_t width, const Function& f) {
    for (int64_t i = 0; i < width; i += kLanes)
        f(i, lanes_from(i, width));
}

// Writes silu(gate) to `to`.
PENSTOCK_INLINE void silu_row(const float* gate, int64_t width, float* to) {
    activation::activate_row<activation::Silu, false>(gate, nullptr, width, to);
}

void norm_then_gate_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView& x = call.tensor[0];
    const int64_t width = x.shape[1], part = quotient(width, call.integer[0]);
    const float* weight = call.tensor[2].row<float>(0);
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        float* to = call.tensor[3].row<float>(row);
        silu_row(call.tensor[1].row<float>(row), width, to);
        for (int64_t begin = 0; begin < width; begin += part) {
            const float* from = x.row<float>(row) + begin;
            const F32 inverse = broadcast(norm::inverse_rms(
                part, call.real[0], [&](int64_t i, int n) { return load_lanes(from + i, n); }));
            each_vector(part, [&](int64_t i, int n) {
                const F32 normal = load_lanes(from + i, n) * inverse;
                const F32 scaled = normal * load_lanes(weight + begin + i, n);
                store_lanes(to + begin + i, scaled * load_lanes(to + begin + i, n), n);
            });
        }
    });
}

void gate_then_norm_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView& x = call.tensor[0];
    const int64_t width = x.shape[1], part = quotient(width, call.integer[0]);
    const float* weight = call.tensor[2].row<float>(0);
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        float* to = call.tensor[3].row<float>(row);
        silu_row(call.tensor[1].row<float>(row), width, to);
        for (int64_t begin = 0; begin < width; begin += part) {
            const float* from = x.row<float>(row) + begin;
            const float inverse = norm::inverse_rms(part, call.real[0], [&](int64_t i, int n) {
                const F32 gated = load_lanes(from + i, n) * load_lanes(to + begin + i, n);
                store_lanes(to + begin + i, gated, n);
                return gated;
            });
            norm::scale_row(to + begin, weight + begin, inverse, part, to + begin);
        }
    });
}

void sigmoid_mul_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &gate = call.tensor[1];
    const int64_t width = x.shape[1];
    const bool one = gate.shape[1] == 1;
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float *from = x.row<float>(row), *gates = gate.row<float>(row);
        float* to = call.tensor[2].row<float>(row);
        each_vector(width, [&](int64_t i, int n) {
            const F32 g = one ? broadcast(gates[0]) : load_lanes(gates + i, n);
            store_lanes(to + i, load_lanes(from + i, n) / (broadcast(1.0f) + exp(-g)), n);
        });
    });
}

void silu_gate_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView& x = call.tensor[0];
    const int64_t width = x.shape[1];
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        float* to = call.tensor[2].row<float>(row);
        silu_row(call.tensor[1].row<float>(row), width, to);
        each_vector(width, [&](int64_t i, int n) {
            store_lanes(to + i, load_lanes(from + i, n) * load_lanes(to + i, n), n);
        });
    });
}

void add_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView& x = call.tensor[0];
    const int64_t width = x.shape[1];
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float *a = x.row<float>(row), *b = call.tensor[1].row<float>(row);
        float* to = call.tensor[2].row<float>(row);
        each_vector(width, [&](int64_t i, int n) {
            store_lanes(to + i, load_lanes(a + i, n) + load_lanes(b + i, n), n);
        });
    });
}

void relu_squared_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView& x = call.tensor[0];
    const int64_t width = x.shape[1];
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        float* to = call.tensor[1].row<float>(row);
        each_vector(width, [&](int64_t i, int n) {
            const F32 positive = max(broadcast(0.0f), load_lanes(from + i, n));
            store_lanes(to + i, positive * positive, n);
        });
    });
}

} // namespace gated_rows

constexpr Kernel kGatedRowKernels[] = {
    {"norm_then_gate", one_phase, gated_rows::tasks, gated_rows::norm_then_gate_run, no_workspace,
     true},
    {"gate_then_norm", one_phase, gated_rows::tasks, gated_rows::gate_then_norm_run, no_workspace,
     true},
    {"sigmoid_mul", one_phase, gated_rows::tasks, gated_rows::sigmoid_mul_run, no_workspace, true},
    {"silu_gate", one_phase, gated_rows::tasks, gated_rows::silu_gate_run, no_workspace, true},
    {"add", one_phase, gated_rows::tasks, gated_rows::add_run, no_workspace, true},
    {"relu_squared", one_phase, gated_rows::tasks, gated_rows::relu_squared_run, no_workspace,
     true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
