// Products of affine weights that are unpacked for blocks of many rows, on ISAs without tiles. They
// give the same integers and the same float sums as multiply_packed_tiles, so that choosing one or
// the other changes no bit of a row. Included by linear_affine.inl.h.
//
// A few units of two packed tiles are unpacked into the L1 cache and multiplied with all rows of a
// task, then the next units; accumulators are kept in memory between units. The inner loop consists
// only of the products and the float operations that every variant needs, and all registers hold
// accumulators.
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/linear/affine_sums.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"
#include "cpu/linear/unpacked_tile.h"
#include "cpu/processor.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr bool kUnpacks = !kTiles;
constexpr int kVectorsAtOnce = kPackedTilesAtOnce * kPackedTileVectors;
// Bytes of the unpacked units, which fill half of an L1 cache.
constexpr int64_t kUnpackedBytes = 16 * 1024;
template <int kBits, int kGroup>
constexpr int64_t kMaxUnits =
    kUnpackedBytes /
    (kPackedTilesAtOnce * static_cast<int64_t>(sizeof(UnpackedUnit<kBits, kGroup>)));

// Returns whether this many rows amortize the unpacking. Intel processors unpack on the ports that
// multiply. AMD processors unpack on other ports: on them unpacking pays only if few rows would
// share each load of a packed tile. AVX2 needs twice the instructions for unpacking, but above 4
// bits its products are faster afterwards.
template <int kBits, int kGroup>
PENSTOCK_INLINE bool unpacking_pays(int64_t rows) {
    if (kBf16Pairs && processor() != Processor::other)
        return kGroup < kUnit && rows >= 32;
    if (kPackedTileVectors > 1 && !kDotsAlike)
        return rows >= (kBits > 4 ? 12 : kGroup < kUnit ? 16 : 32);
    return rows >= 16;
}

// Memory of one task: accumulators of its rows, and unpacked units.
template <int kBits, int kGroup>
struct UnpackedBuffers {
    alignas(64) float sums[kRowBlock][kPackedTilesAtOnce * kPackedTileRows];
    UnpackedUnit<kBits, kGroup> packed_tile[kPackedTilesAtOnce][kMaxUnits<kBits, kGroup>];
};

constexpr size_t kUnpackedBuffersBytes =
    kRowBlock * kPackedTilesAtOnce * kPackedTileRows * sizeof(float) + kUnpackedBytes;
static_assert(sizeof(UnpackedBuffers<4, kUnit>) <= kUnpackedBuffersBytes);
static_assert(sizeof(UnpackedBuffers<8, kUnit / 2>) <= kUnpackedBuffersBytes);

// Returns the bytes of UnpackedBuffers, and of the widened rows if products do not read quantized
// rows as they are.
PENSTOCK_INLINE size_t unpacked_workspace_bytes(const LinearWeights& linear) {
    bool reads_rows = true;
    for (int32_t i = 0; i < linear.num_parts; ++i) {
        const Encoding encoding = linear.parts[i].encoding;
        if (is_affine(encoding) && quant_bits(encoding) == 8)
            reads_rows = kReadsRows<8>;
    }
    const auto units = static_cast<size_t>(linear.depth / kUnit);
    return kUnpackedBuffersBytes + (reads_rows ? 0 : kRowBlock * units * sizeof(UnpackedRow<8>));
}

// The activation rows of a task, in the form that its products read.
template <int kBits>
struct UnpackedRows {
    const uint8_t* first;
    int64_t stride; // in bytes

    const UnpackedRow<kBits>* row(int64_t index) const {
        return reinterpret_cast<const UnpackedRow<kBits>*>(first + index * stride);
    }
};

// Returns the rows of a task. If products do not read quantized rows as they are, the rows are
// widened into `wide`.
template <int kBits>
PENSTOCK_INLINE UnpackedRows<kBits> rows_of(const AffineOperands& operands, const LinearTask& task,
                                            UnpackedRow<kBits>* wide) {
    const uint8_t* first = operands.x + task.row_begin * operands.x_stride;
    if constexpr (kReadsRows<kBits>) {
        return {first, operands.x_stride};
    } else {
        const int64_t rows = task.row_end - task.row_begin, units = operands.linear->depth / kUnit;
        for (int64_t m = 0; m < rows; ++m) {
            const auto* from =
                reinterpret_cast<const QuantizedUnit*>(first + m * operands.x_stride);
            for (int64_t unit = 0; unit < units; ++unit)
                wide[m * units + unit] = UnpackedDot<kBits>::read_row(from[unit]);
        }
        return {reinterpret_cast<const uint8_t*>(wide),
                units * static_cast<int64_t>(sizeof(UnpackedRow<kBits>))};
    }
}

// Adjacent packed tiles after unpacking.
template <int kBits, int kGroup>
using UnpackedTiles = const UnpackedUnit<kBits, kGroup>* const[kPackedTilesAtOnce];

// Computes the dots of one group: kRows rows times vectors first .. first + kVectors - 1 of
// adjacent packed tiles. With kZero, `zero` times the sum of the row's values is added to each dot.
template <int kBits, int kGroup, bool kZero, int group, int first, int kVectors, int kRows>
PENSTOCK_INLINE void unpacked_dots(const UnpackedTiles<kBits, kGroup>& packed_tile, int64_t unit,
                                   int32_t zero, const UnpackedRow<kBits>* const (&in)[kRows],
                                   I32 (&dot)[kRows][kVectors]) {
    using D = UnpackedDot<kBits>;
    constexpr int kWords = D::kStepWords, kSteps = kGroup / (kWords * D::kWordValues);
    constexpr bool kBeginsWithZero = kZero && kDotsAlike; // kDotsAlike: Sum has the type of a dot
    typename D::Sum sum[kRows][kVectors];
    unrolled<kSteps>([&](auto s) {
        constexpr int step = decltype(s)::value, word = (group * kSteps + step) * kWords;
        Words weight[kVectors][kWords];
        unrolled<kVectors * kWords>([&](auto i) {
            constexpr int p = decltype(i)::value / kWords, at = decltype(i)::value % kWords;
            constexpr int v = first + p;
            weight[p][at] =
                packed_tile[v / kPackedTileVectors][unit].quants[word + at][v % kPackedTileVectors];
        });
        unrolled<kRows>([&](auto m) {
            const UnpackedRow<kBits>& row = in[m.value][unit];
            Words values[kWords];
            for (int at = 0; at < kWords; ++at)
                values[at] = broadcast_word(row.value + D::kWordValues * (word + at));
            unrolled<kVectors>([&](auto p) {
                auto& of = sum[m.value][p.value];
                if constexpr (step == 0 && kBeginsWithZero)
                    of = zero_sums<kGroup, group>(row, zero);
                D::template mac<kBeginsWithZero ? 1 : step>(of, weight[p.value], values);
            });
        });
    });
    unrolled<kRows>([&](auto m) {
        unrolled<kVectors>([&](auto p) {
            I32& of = dot[m.value][p.value];
            of = D::finish(sum[m.value][p.value]);
            if constexpr (kZero && !kBeginsWithZero && !D::kCentred)
                of = of + zero_sums<kGroup, group>(in[m.value][unit], zero);
        });
    });
}

// Adds the products of `units` units to the accumulators `acc`.
template <int kBits, int kGroup, bool kMinimum, int kRows>
PENSTOCK_INLINE void add_units(const UnpackedTiles<kBits, kGroup>& packed_tile, int64_t units,
                               int32_t zero, const UnpackedRow<kBits>* const (&in)[kRows],
                               F32 (&acc)[kRows][kVectorsAtOnce]) {
    constexpr int kGroups = kUnit / kGroup;
    constexpr int kVectors =
        kPackedTilesAtOnce == 1 ? UnpackedDot<kBits>::kVectors : kVectorsAtOnce;
    for (int64_t unit = 0; unit < units; ++unit) {
        unrolled<kGroups*(kVectorsAtOnce / kVectors)>([&](auto i) {
            constexpr int group = decltype(i)::value % kGroups;
            constexpr int first = decltype(i)::value / kGroups * kVectors;
            I32 dot[kRows][kVectors];
            unpacked_dots<kBits, kGroup, !kMinimum, group, first>(packed_tile, unit, zero, in, dot);
            F32 scale[kVectors], minimum[kVectors];
            unrolled<kVectors>([&](auto p) {
                constexpr int v = first + decltype(p)::value;
                const auto& from = packed_tile[v / kPackedTileVectors][unit];
                scale[p.value] = load(from.scale[group] + v % kPackedTileVectors * kLanes);
                if (kMinimum)
                    minimum[p.value] = load(from.minimum[group] + v % kPackedTileVectors * kLanes);
            });
            unrolled<kRows>([&](auto m) {
                const UnpackedRow<kBits>& row = in[m.value][unit];
                const F32 sum_x = broadcast(scaled_sum<kGroup, group>(row));
                unrolled<kVectors>([&](auto p) {
                    F32& a = acc[m.value][first + p.value];
                    a = fma(to_float(dot[m.value][p.value]), broadcast(row.scale) * scale[p.value],
                            a);
                    if (kMinimum)
                        a = fma(minimum[p.value], sum_x, a);
                });
            });
        });
    }
}

// A product of unpacked units [unit, unit + units) of a task's packed tiles [first, first +
// packed_tiles) with the task's rows from `row` on.
template <int kBits, int kGroup>
struct UnpackedProduct {
    const AffineOperands* operands;
    const LinearTask* task;
    UnpackedRows<kBits> rows;
    UnpackedBuffers<kBits, kGroup>* buffers;
    int64_t first;
    int64_t packed_tiles; // at most kPackedTilesAtOnce
    int64_t unit = 0;
    int64_t units = 0;
    int64_t row = 0;

    int64_t end() const { return unit + units; }
    int64_t all_units() const { return operands->linear->depth / kUnit; }
};

template <int kBits, int kGroup, bool kMinimum, int kRows>
void multiply_unpacked_rows(const UnpackedProduct<kBits, kGroup>& product) {
    const AffineOperands& operands = *product.operands;
    const PackedMatrix& part = *product.task->part;
    // If only one packed tile is left, it is multiplied twice.
    const UnpackedUnit<kBits, kGroup>* packed_tile[kPackedTilesAtOnce];
    for (int j = 0; j < kPackedTilesAtOnce; ++j)
        packed_tile[j] = product.buffers->packed_tile[j < product.packed_tiles ? j : 0];
    const int64_t of_task = product.row - product.task->row_begin;
    const UnpackedRow<kBits>* in[kRows];
    for (int m = 0; m < kRows; ++m)
        in[m] = product.rows.row(of_task + m) + product.unit;
    auto* sums = product.buffers->sums + of_task;
    const bool begins = product.unit == 0;
    F32 acc[kRows][kVectorsAtOnce];
    unrolled<kRows>([&](auto m) {
        for (int v = 0; v < kVectorsAtOnce; ++v)
            acc[m.value][v] = begins ? broadcast(0.0f) : load(sums[m.value] + v * kLanes);
    });
    add_units<kBits, kGroup, kMinimum, kRows>(packed_tile, product.units, -part.zero_point, in,
                                              acc);
    const bool ends = product.end() == product.all_units();
    for (int m = 0; m < kRows; ++m) {
        for (int v = 0; v < kVectorsAtOnce && !ends; ++v)
            store(sums[m] + v * kLanes, acc[m][v]);
        for (int j = 0; j < product.packed_tiles && ends; ++j) {
            F32 total[kPackedTileVectors];
            for (int v = 0; v < kPackedTileVectors; ++v)
                total[v] = acc[m][j * kPackedTileVectors + v];
            store_tile_columns(*operands.linear, part, product.first + j, total,
                               operands.out + (product.row + m) * operands.out_stride);
        }
    }
}

// Returns the units to unpack next: the units at `from`, or at the end of a packed tile the first
// units of the packed tiles that follow.
template <int kBits, int kGroup>
PENSTOCK_INLINE const uint8_t* units_after(const UnpackedProduct<kBits, kGroup>& product,
                                           const uint8_t* from) {
    if (product.end() < product.all_units())
        return from;
    const PackedMatrix& part = *product.task->part;
    const int64_t next = product.first + kPackedTilesAtOnce;
    return next < product.task->packed_tile_end ? part.data + next * part.packed_tile_bytes
                                                : product.task->next;
}

// Multiplies all rows of a task with unpacked units. Meanwhile prefetches the units at `from`.
template <int kBits, int kGroup>
void multiply_unpacked_units(UnpackedProduct<kBits, kGroup> product, const uint8_t* from) {
    const LinearTask& task = *product.task;
    const int64_t rows = task.row_end - task.row_begin, blocks = ceil_div(rows, kRegisterRows);
    const PackedMatrix& part = *task.part;
    PrefetchLines prefetcher[kPackedTilesAtOnce];
    if (const uint8_t* next = units_after(product, from); next != nullptr) {
        const int64_t bytes = product.units * unit_bytes(part) + super_bytes(part);
        for (int j = 0; j < kPackedTilesAtOnce; ++j)
            prefetcher[j] = PrefetchLines(next + j * part.packed_tile_bytes, bytes, blocks);
    }
    for (int64_t block = 0; block < blocks; ++block) { // of nearly equal size
        product.row = task.row_begin + quotient(rows * block, blocks);
        const int64_t end = task.row_begin + quotient(rows * (block + 1), blocks);
        PrefetchLines::step(prefetcher);
        with_count<kRegisterRows>(end - product.row, [&](auto count) {
            // A packed tile has minima or a zero point, never both.
            part.stored_minimum
                ? multiply_unpacked_rows<kBits, kGroup, true, count.value>(product)
                : multiply_unpacked_rows<kBits, kGroup, false, count.value>(product);
        });
    }
}

// Multiplies all rows of a task, which are at most kRowBlock, by unpacking the weights.
template <Encoding kEncoding, int kGroup>
PENSTOCK_INLINE void multiply_unpacked(const AffineOperands& operands, const LinearTask& task,
                                       Workspace& workspace) {
    const PackedMatrix& part = *task.part;
    constexpr int kBits = kUnpackedBits<kEncoding>;
    auto& buffers = *static_cast<UnpackedBuffers<kBits, kGroup>*>(workspace.data);
    auto* wide = reinterpret_cast<UnpackedRow<kBits>*>(static_cast<uint8_t*>(workspace.data) +
                                                       kUnpackedBuffersBytes);
    const UnpackedRows<kBits> rows = rows_of<kBits>(operands, task, wide);
    for (int64_t first = task.packed_tile_begin; first < task.packed_tile_end;
         first += kPackedTilesAtOnce) {
        const int64_t left = task.packed_tile_end - first;
        UnpackedProduct<kBits, kGroup> product{
            &operands, &task, rows,
            &buffers,  first, left < kPackedTilesAtOnce ? left : kPackedTilesAtOnce};
        const int64_t all = product.all_units();
        const int64_t each = part.scale_form == ScaleForm::two_level
                                 ? kUnitsPerSuper
                                 : ceil_div(all, ceil_div(all, kMaxUnits<kBits, kGroup>));
        const uint8_t* from[kPackedTilesAtOnce];
        for (int64_t j = 0; j < product.packed_tiles; ++j)
            from[j] = part.data + (first + j) * part.packed_tile_bytes;
        for (; product.unit < all; product.unit += each) {
            product.units = product.unit + each < all ? each : all - product.unit;
            for (int64_t j = 0; j < product.packed_tiles; ++j) {
                from[j] =
                    unpack_tile<kEncoding>(part, from[j], product.units, buffers.packed_tile[j]);
            }
            multiply_unpacked_units(product, from[0]);
        }
    }
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
