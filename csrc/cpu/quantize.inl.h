// quantize_rows: float32 activations to int8, symmetric, in groups of 32 along K.
//
//   tensor[0]  x [M, K] float32, K a multiple of 32
//   tensor[1]  quantized [M, quantized_row_bytes(K)] u8, 64-byte aligned: QuantizedUnit[K / 32]
//              and their sums in bf16 where the level has tiles, or what paired scales need
//
// value = x * (127 / max|x|), rounded half to even; scale = sum(x value) / sum(value^2), the one
// that fits these integers best: a thirtieth less error than max|x| / 127 itself. The first sum
// runs in 16 chains, k and k + 16 in order, which are then added by halves; the second is exact. A
// group of zeros (or so small that 127 / max|x| overflows) becomes zeros. A NaN in a group makes
// its scale NaN, an infinity makes it infinite: the row's products then are not finite, never
// silently wrong.
#pragma once

#include "cpu/int16_pairs.h"
#include "cpu/panel.h"
#include "cpu/simd.h"
#include "cpu/tiles.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

constexpr int kUnitVectors = kUnit / kLanes;
constexpr int kChains = kUnitVectors / 2; // vectors of the 16 chains
static_assert(kChains >= 1);

// Sums of one unit by lane, before they are folded: of quotient times value, of the values'
// squares, and of the first and the second 16 values. All but the first are integers and exact.
struct UnitSums {
    F32 matched, squares, values[2];
};

// Writes the values of a unit.
PENSTOCK_INLINE UnitSums round_unit(const float* x, float inverse, int8_t* to) {
    F32 matched[kChains] = {}, values[2] = {}, squares = broadcast(0.0f);
    for (int i = 0; i < kUnitVectors; ++i) {
        const F32 quotient = load(x + i * kLanes) * broadcast(inverse);
        const I32 rounded = to_int(quotient);
        store_i8(to + i * kLanes, rounded);
        const F32 value = to_float(rounded);
        F32& chain = matched[i % kChains];
        chain = fma(quotient, value, chain);
        squares = fma(value, value, squares);
        values[i / kChains] = values[i / kChains] + value;
    }
    for (int width = kChains / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i)
            matched[i] = matched[i] + matched[i + width];
    }
    return {matched[0], squares, {values[0], values[1]}};
}

PENSTOCK_INLINE F32 largest_lanes(const float* x) {
    F32 largest = abs(load(x));
    for (int i = 1; i < kUnitVectors; ++i)
        largest = max(largest, abs(load(x + i * kLanes)));
    return largest;
}

PENSTOCK_INLINE bool has_nan(const float* x) {
    Mask ordered = first(kLanes);
    for (int i = 0; i < kUnitVectors; ++i) {
        const F32 value = load(x + i * kLanes);
        ordered = ordered & equal(value, value);
    }
    return any(!ordered);
}

PENSTOCK_INLINE void quantize_unit(const float* x, QuantizedUnit& unit) {
    const float largest = has_nan(x) ? __builtin_nanf("") : reduce_max(largest_lanes(x));
    const float inverse = 127.0f / largest;
    if (!(inverse > 0.0f && inverse < __builtin_inff())) {
        std::memset(&unit, 0, sizeof unit);
        unit.scale = largest / 127.0f;
        unit.scaled_sum = unit.scale * 0.0f;
        return;
    }
    const UnitSums sums = round_unit(x, inverse, unit.value);
    const float first = reduce_add(sums.values[0]), second = reduce_add(sums.values[1]);
    unit.scale = reduce_add(sums.matched) / reduce_add(sums.squares) / inverse;
    unit.scaled_sum = unit.scale * (first + second);
    unit.sum[0] = static_cast<int16_t>(first);
    unit.sum[1] = static_cast<int16_t>(second);
    unit.centre = -kPairedCentre * static_cast<int32_t>(first + second);
}

// Eight units, whose sums over lanes are folded together: alone, those take longer than all else.
struct Eight {
    const float* x[8];
    QuantizedUnit* unit[8];
    float inverse[kLanes]; // 127 / max|x| of each
};

PENSTOCK_INLINE void find_inverses(Eight& eight) {
    F32 largest[8];
    for (int i = 0; i < 8; ++i)
        largest[i] = largest_lanes(eight.x[i]);
    store(eight.inverse, broadcast(127.0f) / reduce_max_each(largest));
}

PENSTOCK_INLINE void quantize_eight(const Eight& eight) {
    // The sums of both halves are added up as one number: each is below half of this.
    constexpr float kSecond = 4096.0f;
    F32 matched[8], squares[8], both[8];
    for (int i = 0; i < 8; ++i) {
        const UnitSums sums = round_unit(eight.x[i], eight.inverse[i], eight.unit[i]->value);
        matched[i] = sums.matched, squares[i] = sums.squares;
        both[i] = fma(sums.values[1], broadcast(kSecond), sums.values[0]);
    }
    const F32 factor = load(eight.inverse);
    const F32 fitted = reduce_add_each(matched) / reduce_add_each(squares) / factor;
    const Mask fine = less(broadcast(0.0f), factor) & less(factor, broadcast(__builtin_inff())) &
                      equal(fitted, fitted); // a NaN among the values makes the scale one
    if ((bits(fine) & 0xffU) != 0xffU) {
        for (int i = 0; i < 8; ++i)
            quantize_unit(eight.x[i], *eight.unit[i]);
        return;
    }
    const F32 of_both = reduce_add_each(both);
    const F32 of_second = round_even(of_both * broadcast(1.0f / kSecond));
    const F32 of_first = fnma(of_second, broadcast(kSecond), of_both);
    float scale[kLanes], scaled_sum[kLanes];
    int32_t centre[kLanes], sums[kLanes]; // sums: as two int16, the first one low
    store(scale, fitted);
    store(scaled_sum, fitted * (of_first + of_second));
    store(centre, to_int(broadcast(float{-kPairedCentre}) * (of_first + of_second)));
    store(sums, (to_int(of_first) & broadcast(0xffff)) | shift_left<16>(to_int(of_second)));
    for (int i = 0; i < 8; ++i) {
        eight.unit[i]->scale = scale[i];
        eight.unit[i]->scaled_sum = scaled_sum[i];
        std::memcpy(eight.unit[i]->sum, &sums[i], sizeof sums[i]);
        eight.unit[i]->centre = centre[i];
    }
}

// `place(i, from, to)` says where unit i is, and where it goes; it is asked in order. The inverses
// of the next eight are found before these are rounded, so that neither waits.
template <class Place>
PENSTOCK_INLINE void quantize_units(int64_t units, const Place& place) {
    Eight eights[2];
    int64_t next = 0;
    const auto begin = [&](Eight& eight) {
        for (int i = 0; i < 8; ++i, ++next)
            place(next, eight.x[i], eight.unit[i]);
        find_inverses(eight);
    };
    if (units >= 8)
        begin(eights[0]);
    for (int64_t i = 0; i + 8 <= units; i += 8) {
        const int64_t which = i / 8 % 2;
        if (next + 8 <= units)
            begin(eights[1 - which]);
        quantize_eight(eights[which]);
    }
    for (; next < units; ++next) {
        const float* from;
        QuantizedUnit* to;
        place(next, from, to);
        quantize_unit(from, *to);
    }
}

// Splits the scaled sums of units [begin, end) of a row as products of minima take them.
PENSTOCK_INLINE void split_sums(uint8_t* row, int64_t depth, int64_t begin, int64_t end) {
    const auto* units = reinterpret_cast<const QuantizedUnit*>(row);
    const int64_t padded = sum_steps(depth) * kSumStep;
    auto* high = reinterpret_cast<uint16_t*>(row + quantized_units_bytes(depth));
    auto* low = high + padded;
    for (int64_t unit = begin; unit < end; unit += kLanes) {
        const int n = static_cast<int>(end - unit < kLanes ? end - unit : kLanes);
        float sums[kLanes] = {};
        for (int i = 0; i < n; ++i)
            sums[i] = units[unit + i].scaled_sum;
        store_bf16(high + unit, load(sums), n);
        store_bf16(low + unit, load(sums) - load_bf16(high + unit, n), n);
    }
    if (end == depth / kUnit) {
        const auto rest = static_cast<size_t>(padded - end) * sizeof(uint16_t);
        std::memset(high + end, 0, rest);
        std::memset(low + end, 0, rest);
    }
}

// What products of paired scales take of a quantized row. An odd last unit has no pair.
PENSTOCK_INLINE void pair_units(uint8_t* row, int64_t depth) {
    const auto* units = reinterpret_cast<const QuantizedUnit*>(row);
    auto* paired = reinterpret_cast<PairedRowUnits*>(row + quantized_units_bytes(depth));
    uint32_t bits = 0; // of the largest scale; those of a NaN are larger still
    for (int64_t unit = 0; unit < depth / kUnit; ++unit) {
        const uint32_t of_unit = float_bits(units[unit].scale) & 0x7fffffffU;
        bits = of_unit > bits ? of_unit : bits;
    }
    const float largest = bits_float(bits), factor = kPairedLargest / largest;
    const float inverse = factor > 0.0f && factor < __builtin_inff() ? factor : 0.0f;
    paired->step = largest * (32768.0f / kPairedLargest); // not finite where a product must not be
    paired->padding = 0;
    for (int64_t unit = 0; unit < depth / (2 * kUnit) * 2; ++unit) {
        PairedUnits& pair = paired->pairs()[unit / 2];
        const float scale = units[unit].scale * inverse;
        const float sum = units[unit].scaled_sum * inverse * 0x1p-12f;
        pair.scale[unit % 2] = static_cast<int16_t>(__builtin_lrintf(scale));
        pair.sum[unit % 2] = static_cast<int16_t>(__builtin_lrintf(sum));
    }
}

// Units of a task, counted through all rows: about a microsecond of work.
constexpr int64_t kQuantizeTaskUnits = 128;

// Units of a task whose rows have `row_units` units: whole rows, where what a row needs beside its
// units depends on all of them.
PENSTOCK_INLINE int64_t quantize_task_units(int64_t row_units) {
    if (!kPairedScales)
        return kQuantizeTaskUnits;
    return row_units < kQuantizeTaskUnits ? kQuantizeTaskUnits / row_units * row_units : row_units;
}

inline int quantize_phases(const Arguments&) {
    return 1;
}

inline int64_t quantize_tasks(const Arguments& arguments, int) {
    const TensorView& x = arguments.tensor[0];
    const int64_t row_units = x.shape[1] / kUnit;
    return ceil_div(x.shape[0] * row_units, quantize_task_units(row_units));
}

inline void quantize_run(const Arguments& arguments, int, int64_t task, Workspace&) {
    const TensorView& x = arguments.tensor[0];
    const TensorView& quantized = arguments.tensor[1];
    const int64_t row_units = x.shape[1] / kUnit;
    const int64_t units = quantize_task_units(row_units), begin = task * units;
    const int64_t total = x.shape[0] * row_units;
    const int64_t end = begin + units < total ? begin + units : total;
    int64_t row = begin / row_units, unit = begin % row_units;
    quantize_units(end - begin, [&](int64_t, const float*& from, QuantizedUnit*& to) {
        from = x.row<float>(row) + unit * kUnit;
        to = reinterpret_cast<QuantizedUnit*>(quantized.row<uint8_t>(row)) + unit;
        if (++unit == row_units)
            unit = 0, ++row;
    });
    if constexpr (kTiles) {
        for (int64_t next = begin; next < end;) {
            const int64_t of_row = next / row_units * row_units;
            const int64_t last = of_row + row_units < end ? of_row + row_units : end;
            split_sums(quantized.row<uint8_t>(next / row_units), x.shape[1], next - of_row,
                       last - of_row);
            next = last;
        }
    }
    if constexpr (kPairedScales) {
        for (int64_t next = begin; next < end; next += row_units)
            pair_units(quantized.row<uint8_t>(next / row_units), x.shape[1]);
    }
}

inline size_t quantize_workspace_bytes(const Arguments&) {
    return 0;
}

constexpr Kernel kQuantizeKernels[] = {
    {"quantize_rows", quantize_phases, quantize_tasks, quantize_run, quantize_workspace_bytes,
     true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
