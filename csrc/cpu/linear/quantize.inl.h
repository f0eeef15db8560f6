// quantize_rows: float32 activations to int8, symmetric, in groups of 32 along K.
//
//   tensor[0]  x [M, K] float32, K a multiple of 32
//   tensor[1]  quantized [M, quantized_row_bytes(K)] u8, 64-byte aligned: QuantizedUnit[K / 32],
//              then their sums in bf16 if the ISA has tiles, or PairedRowUnits for paired scales
//
// value = x * (127 / max|x|), rounded half to even; scale = sum(x value) / sum(value^2), the
// least-squares scale for these integers, whose error is a thirtieth less than with the scale
// max|x| / 127. The sum of x value has 16 partial sums, each over k and k + 16 in order, which are
// then added by halves; the sum of value^2 is exact. A group of zeros (or so small that 127 /
// max|x| overflows) becomes zeros. A NaN in a group makes its scale NaN, an infinity makes the
// scale infinite: the row's products are then not finite, instead of silently wrong.
#pragma once

#include "cpu/dot/int16_pairs.h"
#include "cpu/linear/quantize_units_x8.h"
#include "cpu/pack/packed_tile.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/matrix_tiles.h"
#include "cpu/simd/simd.h"
#include "cpu/sizes.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

PENSTOCK_INLINE F32 largest_lanes(const float* x) {
    F32 largest = abs(load(x));
    for (int i = kLanes; i < kUnit; i += kLanes)
        largest = max(largest, abs(load(x + i)));
    return largest;
}

// Eight units to quantize together; if fewer are left, the last unit is repeated.
struct UnitsX8 {
    const float* x[8];
    QuantizedUnit* unit[8];
    float inverse[kLanes]; // 127 / max|x| of each unit
};

PENSTOCK_INLINE void find_inverses(UnitsX8& eight) {
    F32 largest[8];
    for (int i = 0; i < 8; ++i)
        largest[i] = largest_lanes(eight.x[i]);
    store(eight.inverse, broadcast(127.0f) / reduce_max_each(largest));
}

// Quantizes a unit that no finite factor scales to a largest value of 127: values are zero.
PENSTOCK_INLINE void clear_unit(const float* x, QuantizedUnit& unit) {
    Mask ordered = first(kLanes);
    for (int i = 0; i < kUnit; i += kLanes)
        ordered = ordered & equal(load(x + i), load(x + i));
    const float largest = any(!ordered) ? __builtin_nanf("") : reduce_max(largest_lanes(x));
    std::memset(&unit, 0, sizeof unit);
    unit.scale = largest / 127.0f;
    unit.scaled_sum = unit.scale * 0.0f;
}

PENSTOCK_INLINE void quantize_units_x8(const UnitsX8& eight) {
    const UnitSumsX8 sums = round_units_x8(eight.x, eight.inverse, eight.unit);
    const F32 factor = load(eight.inverse);
    const F32 scale = sums.matched / to_float(sums.squares) / factor;
    const F32 sum = to_float(sums.first + sums.last);
    write_fields(eight.unit, scale, scale * sum, join_halves(sums.first, sums.last),
                 to_int(broadcast(float{-kPairedCentre}) * sum));
    const Mask finite = less(broadcast(0.0f), factor) & less(factor, broadcast(__builtin_inff())) &
                        equal(scale, scale); // false if a NaN among the values made the scale NaN
    if ((bits(finite) & 0xffU) == 0xffU)
        return;
    for (int i = 0; i < 8; ++i) {
        if ((bits(finite) >> i & 1U) == 0)
            clear_unit(eight.x[i], *eight.unit[i]);
    }
}

// Quantizes `units` >= 1 units. `place(from, to)` sets the source and the destination of the next
// unit. The inverses of the next eight units are computed before the current eight are rounded, so
// that neither computation waits for the other.
template <class Place>
PENSTOCK_INLINE void quantize_units(int64_t units, const Place& place) {
    UnitsX8 eights[2];
    const float* x = nullptr;
    QuantizedUnit* unit = nullptr;
    int64_t next = 0;
    const auto begin = [&](UnitsX8& eight) {
        for (int i = 0; i < 8; ++i) {
            if (next < units)
                place(x, unit), ++next;
            eight.x[i] = x, eight.unit[i] = unit;
        }
        find_inverses(eight);
    };
    begin(eights[0]);
    for (int64_t i = 0; i < units; i += 8) {
        const int64_t which = i / 8 % 2;
        if (next < units)
            begin(eights[1 - which]);
        quantize_units_x8(eights[which]);
    }
}

// Splits the scaled sums of units [begin, end) of a row into high and low bf16 parts, for products
// with minima.
PENSTOCK_INLINE void split_sums(uint8_t* row, int64_t depth, int64_t begin, int64_t end) {
    const auto* units = reinterpret_cast<const QuantizedUnit*>(row);
    const int64_t padded = sum_steps(depth) * kSumStep;
    auto* high = reinterpret_cast<uint16_t*>(row + quantized_units_bytes(depth));
    auto* low = high + padded;
    for (int64_t unit = begin; unit < end; unit += kLanes) {
        const int n = static_cast<int>(end - unit < kLanes ? end - unit : kLanes);
        const F32 sums = read_scales(units + unit, n).scaled_sum;
        store_bf16(high + unit, sums, n);
        store_bf16(low + unit, sums - load_bf16(high + unit, n), n);
    }
    if (end == depth / kUnit) {
        const auto rest = static_cast<size_t>(padded - end) * sizeof(uint16_t);
        std::memset(high + end, 0, rest);
        std::memset(low + end, 0, rest);
    }
}

// Writes the PairedRowUnits of a quantized row. If the number of units is odd, the last unit is in
// no pair.
PENSTOCK_INLINE void pair_units(uint8_t* row, int64_t depth) {
    const auto* units = reinterpret_cast<const QuantizedUnit*>(row);
    auto* paired = reinterpret_cast<PairedRowUnits*>(row + quantized_units_bytes(depth));
    const int64_t count = depth / kUnit;
    I32 bits = broadcast(0); // of the largest scale; a NaN has larger bits than any number
    for (int64_t unit = 0; unit < count; unit += kLanes) {
        const UnitScales of = read_scales(units + unit, count - unit);
        bits = max(bits, as_int(of.scale) & broadcast(0x7fffffff));
    }
    const float largest = bits_float(static_cast<uint32_t>(reduce_max(bits)));
    const float factor = kPairedLargest / largest;
    const F32 inverse = broadcast(factor > 0.0f && factor < __builtin_inff() ? factor : 0.0f);
    paired->step = largest * (32768.0f / kPairedLargest); // NaN or infinite if a scale is
    paired->padding = 0;
    for (int64_t unit = 0; unit + 2 <= count; unit += kLanes) {
        const UnitScales of = read_scales(units + unit, count - unit);
        const I32 scale = to_int(of.scale * inverse);
        const I32 sum = to_int(of.scaled_sum * inverse * broadcast(0x1p-12f));
        write_pairs(paired->pairs() + unit / 2, join_halves(scale, sum), (count - unit) / 2);
    }
}

// Units per task, counted across rows: about a microsecond of work.
constexpr int64_t kQuantizeTaskUnits = 128;

// Returns the units per task for rows of `row_units` units. Tasks contain whole rows if the data
// after a row's units depends on all units of the row.
PENSTOCK_INLINE int64_t quantize_task_units(int64_t row_units) {
    if (!kPairedScales)
        return kQuantizeTaskUnits;
    return row_units < kQuantizeTaskUnits ? kQuantizeTaskUnits / row_units * row_units : row_units;
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
    const float* next_from = x.row<float>(row) + unit * kUnit;
    auto* next_to = reinterpret_cast<QuantizedUnit*>(quantized.row<uint8_t>(row)) + unit;
    quantize_units(end - begin, [&](const float*& from, QuantizedUnit*& to) {
        from = next_from, to = next_to;
        next_from += kUnit, ++next_to;
        if (++unit == row_units) {
            unit = 0, ++row;
            next_from = x.row<float>(row);
            next_to = reinterpret_cast<QuantizedUnit*>(quantized.row<uint8_t>(row));
        }
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

constexpr Kernel kQuantizeKernels[] = {
    {"quantize_rows", one_phase, quantize_tasks, quantize_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
