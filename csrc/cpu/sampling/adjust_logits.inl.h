// Adjusts logits before sampling: bias, penalties, DRY, token masks. Included by the ISA files.
//
//   adjust_logits  tensors: 0 logits [S, V] float32, updated
//                  1 bias_starts [S + 1]; 2 bias_tokens [N]; 3 bias_values [N] float32
//                  4 seen_starts [S + 1]; 5 seen_tokens; 6 seen_counts [N']
//                  7 presence; 8 frequency; 9 repetition [S] float32
//                  10 dry_starts [S + 1]; 11 dry_tokens [N"]; 12 dry_values [N"] float32
//                  13 masks [M, ceil(V / 32)]; 14 mask [S]: 1 + index of the row's mask, 0: none
//                  15 barren [S], written: -2 if the row's mask allows no token, else 0
//                  int32 unless stated otherwise
//
// The semantics are defined in kernels/sampler_inputs.py. One task per row applies all adjustments
// while the row is in the cache.
#pragma once

#include "cpu/row_tasks.inl.h"
#include "cpu/sampling/logit_bias.inl.h"
#include "cpu/sampling/penalties.inl.h"
#include "cpu/sampling/token_mask.inl.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace adjusting {

int64_t tasks(const Arguments& call, int) {
    return call.tensor[0].shape[0];
}

PENSTOCK_INLINE void add(const Arguments& call, int64_t row, size_t starts, float sign) {
    sampling::add_logit_bias(
        call.tensor[0].row<float>(row), sampling::span_of(call.tensor[starts], row),
        call.tensor[starts + 1].row<int32_t>(0), call.tensor[starts + 2].row<float>(0), sign);
}

void run(const Arguments& call, int, int64_t row, Workspace&) {
    const auto number = [&](size_t tensor) { return call.tensor[tensor].row<float>(0)[row]; };
    float* logits = call.tensor[0].row<float>(row);
    add(call, row, 1, 1.0f);
    sampling::penalize(logits, sampling::span_of(call.tensor[4], row),
                       call.tensor[5].row<int32_t>(0), call.tensor[6].row<int32_t>(0),
                       {number(7), number(8), number(9)});
    add(call, row, 10, -1.0f);
    const int64_t mask = int64_t{call.tensor[14].row<int32_t>(0)[row]} - 1;
    bool allowed = true;
    if (mask >= 0) {
        allowed = sampling::apply_mask(logits, call.tensor[13].row<uint32_t>(mask),
                                       call.tensor[0].shape[1]);
    }
    call.tensor[15].row<int32_t>(0)[row] = allowed ? 0 : -2;
}

} // namespace adjusting

constexpr Kernel kAdjustKernels[] = {
    {"adjust_logits", one_phase, adjusting::tasks, adjusting::run, no_workspace},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
