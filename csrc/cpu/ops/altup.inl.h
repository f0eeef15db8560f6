// Alternating updates (AltUp) of four parallel hidden states. Included by the ISA files.
//
//   altup_predict    tensors: s0, s1, s2, s3 [T, W]; coefficients [T, 16]; p0, p1, p2, p3 [T, W]:
//                             p_j = s_j + sum over i of coefficients[4 j + i] * s_i
//   altup_correct    tensors: p0, p1, p2, p3 [T, W]; activated [T, W]; coefficients [T, 4];
//                             weight [W]; c0, c1, c2, c3 [T, W]; scaled [T, W]:
//                             c_j = p_j + (coefficients[j] + 1) * (activated - p0),
//                             scaled = c0 * weight
//   match_magnitude  tensors: x, target, out [T, W]: x times the root mean square of target,
//                             divided by that of x, whose mean square counts as at least `least`
//                    reals:   least
//
// All tensors are float32; rows may be strided.
#pragma once

#include "cpu/ops/row_means.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace altup {

constexpr int kStreams = 4;

using Tasks = RowTasks<8192>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], call.tensor[0].shape[1]);
}

void predict_run(const Arguments& call, int, int64_t task, Workspace&) {
    const int64_t width = call.tensor[0].shape[1];
    Tasks::each(task, call.tensor[0].shape[0], width, [&](int64_t row) {
        const float* coefficient = call.tensor[kStreams].row<float>(row);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int n = lanes_from(i, width);
            F32 streams[kStreams];
            for (int s = 0; s < kStreams; ++s)
                streams[s] = load_lanes(call.tensor[s].row<float>(row) + i, n);
            for (int j = 0; j < kStreams; ++j) {
                F32 predicted = streams[j];
                for (int s = 0; s < kStreams; ++s)
                    predicted =
                        fma(broadcast(coefficient[kStreams * j + s]), streams[s], predicted);
                store_lanes(call.tensor[kStreams + 1 + j].row<float>(row) + i, predicted, n);
            }
        }
    });
}

void correct_run(const Arguments& call, int, int64_t task, Workspace&) {
    constexpr int kActivated = kStreams, kCoefficients = kStreams + 1, kWeight = kStreams + 2;
    constexpr int kCorrected = kStreams + 3, kScaled = kCorrected + kStreams;
    const int64_t width = call.tensor[0].shape[1];
    const float* weight = call.tensor[kWeight].row<float>(0);
    Tasks::each(task, call.tensor[0].shape[0], width, [&](int64_t row) {
        const float* coefficient = call.tensor[kCoefficients].row<float>(row);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int n = lanes_from(i, width);
            const F32 innovation = load_lanes(call.tensor[kActivated].row<float>(row) + i, n) -
                                   load_lanes(call.tensor[0].row<float>(row) + i, n);
            for (int j = 0; j < kStreams; ++j) {
                const F32 predicted = load_lanes(call.tensor[j].row<float>(row) + i, n);
                const F32 corrected = fma(broadcast(coefficient[j] + 1.0f), innovation, predicted);
                store_lanes(call.tensor[kCorrected + j].row<float>(row) + i, corrected, n);
                if (j == 0) {
                    store_lanes(call.tensor[kScaled].row<float>(row) + i,
                                corrected * load_lanes(weight + i, n), n);
                }
            }
        }
    });
}

PENSTOCK_INLINE float mean_square(const float* x, int64_t width) {
    return mean_of(x, width, [](F32 v) { return v * v; });
}

void match_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &target = call.tensor[1], &out = call.tensor[2];
    const int64_t width = x.shape[1];
    Tasks::each(task, x.shape[0], width, [&](int64_t row) {
        const float* from = x.row<float>(row);
        const float own = mean_square(from, width), least = call.real[0];
        const float wanted = __builtin_sqrtf(mean_square(target.row<float>(row), width));
        const F32 factor = broadcast(wanted / __builtin_sqrtf(own < least ? least : own));
        float* to = out.row<float>(row);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int n = lanes_from(i, width);
            store_lanes(to + i, load_lanes(from + i, n) * factor, n);
        }
    });
}

} // namespace altup

constexpr Kernel kAltUpKernels[] = {
    {"altup_predict", one_phase, altup::tasks, altup::predict_run, no_workspace, true},
    {"altup_correct", one_phase, altup::tasks, altup::correct_run, no_workspace, true},
    {"match_magnitude", one_phase, altup::tasks, altup::match_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
