// linear_affine: quantized activations times integer weights.
//
//   tensor[0]  quantized [M, quantized_row_bytes(K)] u8, written by quantize_rows
//   tensor[1]  out [M, sum N] float32; the columns of affine parts are written, with bias
//   object     LinearWeights, packed for this ISA
//   integer[0] number of threads that will run the call (0: unknown); affects task sizes only
//
// The arithmetic is the same for every M and every instruction set. For each group of k in order,
//   dot = sum of (q - zero_point) * value, exact in int32 (zero_point 0 if minima are stored)
//   acc = fma(float(dot), unit.scale * scale, acc)
//   acc = fma(minimum, scaled sum of the group's values, acc), if minima are stored
// then out = acc + bias. The conversion float(dot) is exact: |dot| <= 32 * 255 * 127 < 2^24. On
// ISAs with tiles the minima of groups of 32 are summed separately (linear_minima.h): out = (acc +
// sum) + bias. Weights with paired scales have the arithmetic of linear_paired_scales.h.
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/linear/affine_sums.h"
#include "cpu/linear/linear_affine_amx.h"
#include "cpu/linear/linear_minima.h"
#include "cpu/linear/linear_paired_scales.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"
#include "cpu/linear/linear_unpacked.h"
#include "cpu/linear/packed_tile_reader.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Computes the dots of one group: kRows rows times vectors first .. first + count - 1 of adjacent
// packed tiles.
template <Encoding kEncoding, int kGroup, int group, int first, int count, int kPackedTiles,
          int kRows>
PENSTOCK_INLINE void group_dots(const uint8_t (&table)[kTableSize],
                                const uint8_t* const (&quants)[kPackedTiles],
                                const QuantizedUnit* const (&in)[kRows], I32 (&dot)[kRows][count]) {
    using D = Dot<quant_bits(kEncoding)>;
    constexpr int kWords = D::kStepWords, kSteps = kGroup / (4 * kWords);
    typename D::Sum sum[kRows][count];
    unrolled<kSteps>([&](auto s) {
        constexpr int kWord = (group * kSteps + decltype(s)::value) * kWords;
        typename D::Weight weight[count][kWords];
        unrolled<count * kWords>([&](auto i) {
            constexpr int p = decltype(i)::value / kWords, at = decltype(i)::value % kWords;
            constexpr int kVector = first + p;
            weight[p][at] =
                D::prepare(step_words<kEncoding, kWord + at, kVector % kPackedTileVectors>(
                    quants[kVector / kPackedTileVectors], table));
        });
        unrolled<kRows>([&](auto m) {
            Words values[kWords];
            for (int at = 0; at < kWords; ++at)
                values[at] = broadcast_word(in[m.value]->value + 4 * (kWord + at));
            unrolled<count>([&](auto p) {
                D::template mac<decltype(s)::value>(sum[m.value][p.value], weight[p.value], values);
            });
        });
    });
    unrolled<kRows>([&](auto m) {
        unrolled<count>([&](auto p) { dot[m.value][p.value] = D::finish(sum[m.value][p.value]); });
    });
}

// Returns the number that is multiplied by the sum of a group's values and added to its dot.
template <Encoding kEncoding>
PENSTOCK_INLINE int32_t zero_factor(const PackedMatrix& part) {
    return Dot<quant_bits(kEncoding)>::kCentre - (part.stored_minimum ? 0 : part.zero_point);
}

// Whether minima are stored. `none`, `zero_point` (none, and zero_factor is not 0) and `stored` are
// constants at compile time, used for cases in which the speed justifies the code size; with
// `asked`, the part is read at run time.
enum class Minima { none, zero_point, stored, asked };

// Multiplies kRows rows with kPackedTiles packed tiles over all units, without the minima that
// matrix tiles multiply. `x` is the first row.
template <Encoding kEncoding, int kGroup, Minima kMinima, int kRows, int kPackedTiles>
PENSTOCK_INLINE void
multiply_packed_tiles(const PackedMatrix& part, const uint8_t* (&packed_tile)[kPackedTiles],
                      int64_t units, const uint8_t* x, int64_t x_stride, PrefetchLines& prefetcher,
                      F32 (&total)[kRows][kPackedTiles][kPackedTileVectors]) {
    constexpr int kGroups = kUnit / kGroup;
    constexpr int kVectors = kPackedTiles == 1 ? Dot<quant_bits(kEncoding)>::kVectors
                                               : kPackedTiles * kPackedTileVectors;
    using Scales = PackedTileScales<kGroups>;
    const bool minimum = kMinima == Minima::asked ? part.stored_minimum : kMinima == Minima::stored;
    const int32_t zero = zero_factor<kEncoding>(part);
    const ScaleForm form = part.scale_form;
    Scales scales[kPackedTiles];
    Scales minima[kPackedTiles];
    F32 acc[kRows][kPackedTiles][kPackedTileVectors] = {};
    const QuantizedUnit* in[kRows];
    for (int m = 0; m < kRows; ++m) {
        in[m] = reinterpret_cast<const QuantizedUnit*>(x + m * x_stride);
    }
    for (int64_t unit = 0; unit < units; ++unit) {
        prefetcher.step();
        unrolled<kPackedTiles>([&](auto j) {
            const uint8_t*& at = packed_tile[j.value];
            if (form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
                at = Scales::read_super(scales[j.value], at);
                if (minimum)
                    at = Scales::read_super(minima[j.value], at);
            }
            at = Scales::read(scales[j.value], form, at);
            if (minimum)
                at = Scales::read(minima[j.value], form, at);
        });
        unrolled<kGroups*(kPackedTiles * kPackedTileVectors / kVectors)>([&](auto i) {
            constexpr int g = decltype(i)::value % kGroups;
            constexpr int first = decltype(i)::value / kGroups * kVectors;
            I32 dot[kRows][kVectors];
            group_dots<kEncoding, kGroup, g, first>(part.table, packed_tile, in, dot);
            unrolled<kRows>([&](auto m) {
                const QuantizedUnit& row = *in[m.value];
                unrolled<kVectors>([&](auto p) {
                    constexpr int j = (first + decltype(p)::value) / kPackedTileVectors;
                    constexpr int v = (first + decltype(p)::value) % kPackedTileVectors;
                    I32 sum = dot[m.value][p.value];
                    if (kMinima == Minima::zero_point || zero != 0)
                        sum = sum + zero_sums<kGroup, g>(row, zero);
                    F32& a = acc[m.value][j][v];
                    const F32 scale = broadcast(row.scale) * scales[j].value[g][v];
                    a = fma(to_float(sum), scale, a);
                    if (minimum && !kMinimaByTiles<kGroup>)
                        a = fma(minima[j].value[g][v], broadcast(scaled_sum<kGroup, g>(row)), a);
                });
            });
        });
        for (int j = 0; j < kPackedTiles; ++j)
            packed_tile[j] += quant_bytes(kEncoding);
        for (int m = 0; m < kRows; ++m)
            ++in[m];
    }
    for (int m = 0; m < kRows; ++m) {
        for (int j = 0; j < kPackedTiles; ++j) {
            for (int v = 0; v < kPackedTileVectors; ++v)
                total[m][j][v] = acc[m][j][v];
        }
    }
}

// Rows that share each load of a packed tile. Four if registers hold more than accumulators: groups
// of 16 have twice the scales (and are common at 6 bits only), and nibbles are unpacked when they
// are used. AMD processors issue at most two VPDPBUSD per cycle with a latency of four cycles, so
// that eight dependency chains keep them busy; Intel processors of the ISAs without BF16 need more.
constexpr int kFourRows = kRegisterRows < 4 ? kRegisterRows : 4;
template <Encoding kEncoding, int kGroup>
constexpr int kMaxRows =
    kGroup != kUnit ? (kEncoding == Encoding::affine6 ? kFourRows : 2)
    : (kEncoding == Encoding::affine4 || is_table(kEncoding)) && kBf16Pairs && !kTiles
        ? kFourRows
        : kRegisterRows;

// The product of rows from `row` on with packed tiles [begin, end) of a part.
struct BlockProduct {
    const AffineOperands* operands;
    const PackedMatrix* part;
    int64_t row;
    int64_t begin;
    int64_t end;
    MinimumBuffers minima;
    // whether `minima` already holds the split minima: the product has one packed tile, and earlier
    // rows have split its minima
    bool split;
};

template <Encoding kEncoding, int kGroup, Minima kMinima, int kRows, int kPackedTiles>
void multiply_rows(const BlockProduct& product, PrefetchLines& prefetcher) {
    const AffineOperands& operands = *product.operands;
    const PackedMatrix& part = *product.part;
    const int64_t depth = operands.linear->depth, units = depth / kUnit;
    const uint8_t* x = operands.x + product.row * operands.x_stride;
    const bool by_tiles = kMinimaByTiles<kGroup> && part.stored_minimum;
    float* of_minima = product.minima.sums();
    if (by_tiles)
        configure_minima(kRows);
    for (int64_t packed_tile = product.begin; packed_tile < product.end;
         packed_tile += kPackedTiles) {
        PackedTileGroup<kPackedTiles> tiles(part, packed_tile, product.end);
        if (by_tiles) {
            if (!product.split)
                split_minima<kEncoding>(part, tiles.data[0], units, product.minima.steps());
            multiply_minima(product.minima.steps(), depth, x, operands.x_stride, of_minima);
        }
        F32 total[kRows][kPackedTiles][kPackedTileVectors];
        multiply_packed_tiles<kEncoding, kGroup, kMinima, kRows>(
            part, tiles.data, units, x, operands.x_stride, prefetcher, total);
        for (int m = 0; m < kRows; ++m) {
            if (by_tiles)
                total[m][0][0] = total[m][0][0] + load(of_minima + m * kPackedTileRows);
            for (int j = 0; j < kPackedTiles; ++j) {
                store_tile_columns(*operands.linear, part, tiles.index[j], total[m][j],
                                   operands.out + (product.row + m) * operands.out_stride);
            }
        }
    }
}

// Multiplies the rows of a task from row_begin on, in nearly equal blocks of at most kMaxRows.
template <Encoding kEncoding, int kGroup, Minima kMinima>
void multiply_blocks(const AffineOperands& operands, const LinearTask& task, int64_t row_begin,
                     Workspace& workspace) {
    constexpr int kMax = kMaxRows<kEncoding, kGroup>;
    const int64_t depth = operands.linear->depth;
    const int64_t steps = ceil_div(task.row_end - row_begin, kMax) * (depth / kUnit);
    const auto block = [](int64_t left) { return ceil_div(left, ceil_div(left, kMax)); };
    multiply_with_prefetch(
        task, row_begin, steps, kPackedTilesAtOnce, block,
        [&](int64_t begin, int64_t end, int64_t row, int64_t rows, PrefetchLines& prefetcher) {
            const MinimumBuffers minima{workspace.data, depth};
            const bool split = row > row_begin && end == begin + 1;
            const BlockProduct product{&operands, task.part, row, begin, end, minima, split};
            with_count<kMax>(rows, [&](auto count) {
                with_packed_tiles<count.value>(task, [&](auto packed_tiles) {
                    multiply_rows<kEncoding, kGroup, kMinima, count.value, packed_tiles.value>(
                        product, prefetcher);
                });
            });
        });
}

// Multiplies the rows of a task. Many rows are multiplied in tile blocks if the ISA has tiles, or
// with unpacked weights; the remaining rows are multiplied in small blocks.
template <Encoding kEncoding, int kGroup, Minima kMinima>
void multiply_task(const AffineOperands& operands, const LinearTask& task, Workspace& workspace) {
    if constexpr (kUnpacks) {
        if (unpacking_pays<kUnpackedBits<kEncoding>, kGroup>(task.row_end - task.row_begin))
            return multiply_unpacked<kEncoding, kGroup>(operands, task, workspace);
    }
    int64_t row = task.row_begin;
    if constexpr (kTiles) {
        const int64_t rest = (task.row_end - row) % kTileBlockRows;
        const int64_t tiled = rest < kMinTileRows ? task.row_end - rest : task.row_end;
        if (tiled > row) {
            multiply_tiles<kEncoding, kGroup>(operands, task, tiled, workspace);
        }
        row = tiled;
    }
    if (row < task.row_end)
        multiply_blocks<kEncoding, kGroup, kMinima>(operands, task, row, workspace);
    release_tiles();
}

template <Encoding kEncoding>
void multiply_format(const AffineOperands& operands, const LinearTask& task, Workspace& workspace) {
    if (task.part->group != kUnit) {
        multiply_task<kEncoding, 16, Minima::asked>(operands, task, workspace);
    } else if constexpr (kEncoding == Encoding::affine4) {
        task.part->stored_minimum
            ? multiply_task<kEncoding, kUnit, Minima::stored>(operands, task, workspace)
            : multiply_task<kEncoding, kUnit, Minima::none>(operands, task, workspace);
    } else if constexpr (kEncoding == Encoding::affine8) {
        const bool zero = zero_factor<kEncoding>(*task.part) != 0;
        if (!task.part->stored_minimum && zero)
            return multiply_task<kEncoding, kUnit, Minima::zero_point>(operands, task, workspace);
        if constexpr (Dot<quant_bits(kEncoding)>::kCentre != 0) {
            if (!task.part->stored_minimum)
                return multiply_task<kEncoding, kUnit, Minima::none>(operands, task, workspace);
        }
        multiply_task<kEncoding, kUnit, Minima::asked>(operands, task, workspace);
    } else {
        multiply_task<kEncoding, kUnit, Minima::asked>(operands, task, workspace);
    }
}

template <Encoding kEncoding>
void multiply_table(const AffineOperands& operands, const LinearTask& task, Workspace& workspace) {
    task.part->group == kUnit
        ? multiply_task<kEncoding, kUnit, Minima::none>(operands, task, workspace)
        : multiply_task<kEncoding, 16, Minima::none>(operands, task, workspace);
}

inline int linear_affine_phases(const Arguments&) {
    return 1;
}

inline int64_t linear_affine_tasks(const Arguments& arguments, int) {
    return LinearPartition::tasks(LinearPartition::make(arguments, true));
}

// Runs one task of the affine parts.
inline void multiply_affine(const AffineOperands& operands, const LinearTask& task,
                            Workspace& workspace) {
    if (kPairedScales && task.part->scale_form == ScaleForm::paired)
        return multiply_paired(operands, task);
    switch (task.part->encoding) {
    case Encoding::affine4: multiply_format<Encoding::affine4>(operands, task, workspace); break;
    case Encoding::affine6: multiply_format<Encoding::affine6>(operands, task, workspace); break;
    case Encoding::table4: multiply_table<Encoding::table4>(operands, task, workspace); break;
    case Encoding::table4_narrow:
        multiply_table<kDotsAlike ? Encoding::table4 : Encoding::table4_narrow>(operands, task,
                                                                                workspace);
        break;
    default: multiply_format<Encoding::affine8>(operands, task, workspace); break;
    }
}

inline void linear_affine_run(const Arguments& arguments, int, int64_t index,
                              Workspace& workspace) {
    const LinearPartition cut = LinearPartition::make(arguments, true);
    const LinearTask task = LinearPartition::task(cut, index);
    const TensorView& x = arguments.tensor[0];
    const TensorView& out = arguments.tensor[1];
    const AffineOperands operands{cut.linear, static_cast<const uint8_t*>(x.data), x.stride[0],
                                  static_cast<float*>(out.data), out.stride[0]};
    multiply_affine(operands, task, workspace);
}

PENSTOCK_INLINE size_t affine_workspace_bytes(const LinearWeights& linear) {
    return kTiles     ? affine_tiles_workspace_bytes(linear)
           : kUnpacks ? unpacked_workspace_bytes(linear)
                      : 0;
}

inline size_t linear_affine_workspace_bytes(const Arguments& arguments) {
    return affine_workspace_bytes(*static_cast<const LinearWeights*>(arguments.object));
}

constexpr Kernel kLinearAffineKernels[] = {
    {"linear_affine", linear_affine_phases, linear_affine_tasks, linear_affine_run,
     linear_affine_workspace_bytes, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
