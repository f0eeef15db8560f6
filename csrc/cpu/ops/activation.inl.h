// Activations of feed-forward blocks and classifiers. Included by the ISA files.
//
//   silu_mul       tensors: gate_up [T, 2 F] (gate, then up), out [T, F]; float32
//   gelu_mul, gelu_tanh_mul  likewise
//   gelu, gelu_tanh, quick_gelu, silu, tanh  tensors: x [T, F], out [T, F]; float32
//
// silu(g) = g / (1 + exp(-g)). gelu(x) = x Phi(x) with the normal distribution function Phi;
// gelu_tanh approximates gelu by a tanh; quick_gelu(x) = x / (1 + exp(-1.702 x)). Elements are
// independent; rows may be strided.
#pragma once

#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace activation {

using Tasks = RowTasks<8192>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[1].shape[0], call.tensor[1].shape[1]);
}

struct Silu {
    template <class Vector>
    PENSTOCK_INLINE Vector of(Vector x) {
        return x / (broadcast(1.0f) + exp(-x));
    }
};

// Computes x * 0.5 (1 + tanh(u)) as x / (1 + exp(-2 u)), with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
    template <class Vector>
    PENSTOCK_INLINE Vector of(Vector x) {
        const Vector inner = fma(x * x, broadcast(-0.07135481627f), broadcast(-1.59576912161f));
        return x / (broadcast(1.0f) + exp(x * inner));
    }
};

// Computes x P(X <= x) for a standard normal X. P(X > |x|) is computed by Abramowitz and Stegun
// 7.1.26, whose absolute error of erf is 1.5e-7; for x >= 0 the result uses 1 - P(X > |x|).
struct Gelu {
    template <class Vector>
    PENSTOCK_INLINE Vector of(Vector x) {
        const F32 one = broadcast(1.0f);
        const Vector z = abs(x) * broadcast(0.70710678118654752f);
        const Vector t = one / fma(z, broadcast(0.3275911f), one);
        Vector p = broadcast(0.5f * 1.061405429f);
        p = fma(p, t, broadcast(0.5f * -1.453152027f));
        p = fma(p, t, broadcast(0.5f * 1.421413741f));
        p = fma(p, t, broadcast(0.5f * -0.284496736f));
        p = fma(p, t, broadcast(0.5f * 0.254829592f));
        const Vector tail = p * t * exp(-(z * z));
        return x * select_less(x, broadcast(0.0f), tail, one - tail);
    }
};

struct QuickGelu {
    template <class Vector>
    PENSTOCK_INLINE Vector of(Vector x) {
        return x / (broadcast(1.0f) + exp(x * broadcast(-1.702f)));
    }
};

struct Tanh {
    template <class Vector>
    PENSTOCK_INLINE Vector of(Vector x) {
        const F32 one = broadcast(1.0f);
        return one - broadcast(2.0f) / (one + exp(x + x));
    }
};

// Applies the activation to one row, and multiplies the result by `up` if `gated`.
template <class Activation, bool gated>
PENSTOCK_INLINE void activate_row(const float* x, const float* up, int64_t width, float* to) {
    using Several = Interleaved<kInterleaved>;
    int64_t i = 0;
    for (; i + kInterleaved * kLanes <= width; i += kInterleaved * kLanes) {
        Several value = Activation::of(Several::loaded(x + i));
        if constexpr (gated)
            value = value * Several::loaded(up + i);
        value.stored(to + i);
    }
    for (; i < width; i += kLanes) {
        const int n = lanes_from(i, width);
        F32 value = Activation::of(load_lanes(x + i, n));
        if constexpr (gated)
            value = value * load_lanes(up + i, n);
        store_lanes(to + i, value, n);
    }
}

template <class Activation, bool gated>
void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &out = call.tensor[1];
    const int64_t width = out.shape[1];
    Tasks::each(task, out.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        activate_row<Activation, gated>(from, from + width, width, out.row<float>(row));
    });
}

} // namespace activation

constexpr Kernel kActivationKernels[] = {
    {"silu_mul", one_phase, activation::tasks, activation::run<activation::Silu, true>,
     no_workspace, true},
    {"gelu_mul", one_phase, activation::tasks, activation::run<activation::Gelu, true>,
     no_workspace, true},
    {"gelu_tanh_mul", one_phase, activation::tasks, activation::run<activation::GeluTanh, true>,
     no_workspace, true},
    {"gelu", one_phase, activation::tasks, activation::run<activation::Gelu, false>, no_workspace,
     true},
    {"gelu_tanh", one_phase, activation::tasks, activation::run<activation::GeluTanh, false>,
     no_workspace, true},
    {"quick_gelu", one_phase, activation::tasks, activation::run<activation::QuickGelu, false>,
     no_workspace, true},
    {"silu", one_phase, activation::tasks, activation::run<activation::Silu, false>, no_workspace,
     true},
    {"tanh", one_phase, activation::tasks, activation::run<activation::Tanh, false>, no_workspace,
     true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
