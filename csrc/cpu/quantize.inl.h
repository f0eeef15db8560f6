// quantize_rows: float32 activations to int8, symmetric, in groups of 32 along K.
//
//   tensor[0]  x [M, K] float32, K a multiple of 32
//   tensor[1]  quantized [M, quantized_row_bytes(K)] u8, 64-byte aligned: QuantizedUnit[K / 32]
//
// value = x / (max|x| / 127), rounded half to even; scale = sum(x value) / sum(value^2), the one
// that fits these integers best: a thirtieth less error than max|x| / 127 itself. The first sum
// runs in 16 chains, k and k + 16 in order, which are then added by halves; the second is exact. A
// group of zeros (or so small that max|x| / 127 underflows) becomes zeros. A NaN in a group makes
// its scale NaN, an infinity makes it infinite: the row's products then are not finite, never
// silently wrong.
#pragma once

#include "cpu/panel.h"
#include "cpu/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

PENSTOCK_INLINE void quantize_unit(const float* x, QuantizedUnit& unit) {
    constexpr int kVectors = kUnit / kLanes;
    F32 value[kVectors];
    F32 largest = broadcast(0.0f);
    Mask ordered = first(kLanes);
    for (int i = 0; i < kVectors; ++i) {
        value[i] = load(x + i * kLanes);
        largest = max(largest, abs(value[i]));
        ordered = ordered & equal(value[i], value[i]);
    }
    const float step = any(!ordered) ? bits_float(0x7fc00000u) : reduce_max(largest) / 127.0f;
    const F32 divisor = broadcast(step);
    const F32 limit = broadcast(127.0f);
    const Mask usable = less(broadcast(0.0f), divisor) & less(divisor, broadcast(3.0e38f));
    constexpr int kChains = kVectors / 2; // vectors of the 16 chains
    F32 matched[kChains] = {};
    F32 squares = broadcast(0.0f);
    int32_t sum[2];
    for (int half = 0; half < 2; ++half) {
        I32 total = broadcast(int32_t{0});
        for (int i = half * kVectors / 2; i < (half + 1) * kVectors / 2; ++i) {
            // The clamp is for subnormal scales, which are inexact.
            const F32 quotient = max(min(value[i] / divisor, limit), -limit);
            const I32 rounded = to_int(select(usable, quotient, broadcast(0.0f)));
            store_i8(unit.value + i * kLanes, rounded);
            total = total + rounded;
            const F32 integers = to_float(rounded);
            F32& chain = matched[i % kChains];
            chain = fma(quotient, integers, chain);
            squares = fma(integers, integers, squares);
        }
        sum[half] = reduce_add(total);
    }
    for (int width = kChains / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i)
            matched[i] = matched[i] + matched[i + width];
    }
    const float scale = any(usable) ? step * (reduce_add(matched[0]) / reduce_add(squares)) : step;
    unit.scale = scale;
    unit.scaled_sum = scale * static_cast<float>(sum[0] + sum[1]);
    unit.sum[0] = static_cast<int16_t>(sum[0]);
    unit.sum[1] = static_cast<int16_t>(sum[1]);
    unit.padding = 0;
}

// Units of a task, counted through all rows: about a microsecond of work.
constexpr int64_t kQuantizeTaskUnits = 128;

inline int quantize_phases(const Arguments&) {
    return 1;
}

inline int64_t quantize_tasks(const Arguments& arguments, int) {
    const TensorView& x = arguments.tensor[0];
    const int64_t units = x.shape[0] * (x.shape[1] / kUnit);
    return (units + kQuantizeTaskUnits - 1) / kQuantizeTaskUnits;
}

inline void quantize_run(const Arguments& arguments, int, int64_t task, Workspace&) {
    const TensorView& x = arguments.tensor[0];
    const TensorView& quantized = arguments.tensor[1];
    const int64_t row_units = x.shape[1] / kUnit;
    const int64_t begin = task * kQuantizeTaskUnits;
    const int64_t total = x.shape[0] * row_units;
    const int64_t end = begin + kQuantizeTaskUnits < total ? begin + kQuantizeTaskUnits : total;
    int64_t row = begin / row_units;
    int64_t unit = begin % row_units;
    for (int64_t i = begin; i < end; ++i) {
        const float* from = static_cast<const float*>(x.data) + row * x.stride[0];
        uint8_t* to = static_cast<uint8_t*>(quantized.data) + row * quantized.stride[0];
        quantize_unit(from + unit * kUnit, reinterpret_cast<QuantizedUnit*>(to)[unit]);
        if (++unit == row_units) {
            unit = 0;
            ++row;
        }
    }
}

inline size_t quantize_workspace_bytes(const Arguments&) {
    return 0;
}

constexpr Kernel kQuantizeKernels[] = {
    {"quantize_rows", quantize_phases, quantize_tasks, quantize_run, quantize_workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
