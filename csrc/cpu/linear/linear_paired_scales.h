// Products of 4-bit weights with paired scales (packed_tile.h), for any number of rows. Included by
// linear_affine.inl.h.
//
// For one unit with ordinary scales, AVX-512 issues eight operations on the multiplier ports for
// the 32 products and three more for scales and minima. With paired scales these three serve two
// units: the dots fit 16 bits once the quants are centred, so that one instruction scales two dots.
// For every two units, in order, all in integers:
//   dot[i] = sum of (q - 8) * value, |dot[i]| <= 32 * 8 * 127 < 2^15
//   sum = minimum[0] * in.sum[0] + minimum[1] * in.sum[1]
//       + dot[0] * scaled(scale[0], in.scale[0]) + dot[1] * scaled(scale[1], in.scale[1])
//   acc = acc + float(sum)
// then out = (acc * step) * in.step + bias. The sum does not overflow: factors of a packed tile are
// below 2^15; factors of a row, the `scaled` products and in.sum are at most 16383.
#pragma once

#include "cpu/dot/int16_pairs.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"
#include "cpu/linear/packed_tile_reader.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if defined(PENSTOCK_BF16_PAIRS)

constexpr int kPairedRows = kRegisterRows < 4 ? kRegisterRows : 4;

// One quantized activation row.
struct PairedRow {
    const QuantizedUnit* units;
    const PairedRowUnits* paired;

    PairedRow(const uint8_t* row, int64_t depth)
        : units(reinterpret_cast<const QuantizedUnit*>(row)), paired(paired_units(row, depth)) {}
};

// Computes the dots of one of two units: kRows rows with adjacent packed tiles.
template <int kRows, int kPackedTiles>
PENSTOCK_INLINE void paired_dots(const uint8_t* const (&quants)[kPackedTiles],
                                 const PairedRow* rows, int64_t unit,
                                 I32 (&dot)[kRows][kPackedTiles]) {
    using D = Dot<4>;
    unrolled<kUnit / 4>([&](auto s) {
        constexpr int step = decltype(s)::value;
        Words weight[kPackedTiles][1];
        for (int j = 0; j < kPackedTiles; ++j)
            weight[j][0] = nibble_words<step, 0>(quants[j]);
        unrolled<kRows>([&](auto m) {
            const QuantizedUnit& in = rows[m.value].units[unit];
            const Words values[] = {broadcast_word(in.value + 4 * step)};
            for (int j = 0; j < kPackedTiles; ++j) {
                I32& sum = dot[m.value][j];
                if (step == 0)
                    sum = broadcast(in.centre);
                D::template mac<1>(sum, weight[j], values);
            }
        });
    });
}

// Multiplies kRows rows with adjacent packed tiles; the result is not yet multiplied by the steps.
template <bool kMinimum, int kRows, int kPackedTiles>
PENSTOCK_INLINE void multiply_pairs(const uint8_t* (&packed_tile)[kPackedTiles], int64_t units,
                                    const PairedRow* rows, PrefetchLines& prefetcher,
                                    F32 (&acc)[kRows][kPackedTiles]) {
    PrefetchLines own = prefetcher; // a copy, which stays in registers
    constexpr int64_t kPairBytes = 2 * kPackedTileRows * sizeof(int16_t);
    for (int64_t unit = 0; unit < units; unit += 2) {
        own.step();
        const int16_t* scales[kPackedTiles];
        for (int j = 0; j < kPackedTiles; ++j) {
            scales[j] = reinterpret_cast<const int16_t*>(packed_tile[j]);
            packed_tile[j] += (kMinimum ? 2 : 1) * kPairBytes;
        }
        I32 dot[2][kRows][kPackedTiles];
        unrolled<2>([&](auto i) {
            paired_dots<kRows>(packed_tile, rows, unit + i.value, dot[i.value]);
            for (int j = 0; j < kPackedTiles; ++j)
                packed_tile[j] += quant_bytes(Encoding::affine4);
        });
        unrolled<kRows>([&](auto m) {
            const PairedUnits& in = rows[m.value].paired->pairs()[unit / 2];
            for (int j = 0; j < kPackedTiles; ++j) {
                I32 sum = broadcast(int32_t{0});
                if (kMinimum) {
                    const Int16Pairs minima = load_int16_pairs(scales[j] + 2 * kPackedTileRows);
                    sum = add_int16_pairs(sum, minima, broadcast_int16_pair(in.sum));
                }
                const Int16Pairs factors =
                    scaled(load_int16_pairs(scales[j]), broadcast_int16_pair(in.scale));
                const Int16Pairs dots = low_halves(dot[0][m.value][j], dot[1][m.value][j]);
                sum = add_int16_pairs(sum, dots, factors);
                acc[m.value][j] = acc[m.value][j] + to_float(sum);
            }
        });
    }
    prefetcher = own;
}

template <bool kMinimum, int kRows, int kPackedTiles>
void multiply_paired_rows(const AffineOperands& operands, const PackedMatrix& part, int64_t row,
                          int64_t begin, int64_t end, PrefetchLines& prefetcher) {
    const int64_t depth = operands.linear->depth;
    const auto row_of = [&](int m) {
        return PairedRow(operands.x + (row + m) * operands.x_stride, depth);
    };
    const PairedRow rows[] = {row_of(0), row_of(1 % kRows), row_of(2 % kRows), row_of(3 % kRows)};
    static_assert(kRows <= 4);
    for (int64_t packed_tile = begin; packed_tile < end; packed_tile += kPackedTiles) {
        PackedTileGroup<kPackedTiles> tiles(part, packed_tile, end);
        const float* steps[kPackedTiles];
        for (int j = 0; j < kPackedTiles; ++j) {
            steps[j] = reinterpret_cast<const float*>(tiles.data[j]);
            tiles.data[j] += head_bytes(part);
        }
        F32 acc[kRows][kPackedTiles];
        set_zero(acc);
        multiply_pairs<kMinimum>(tiles.data, depth / kUnit, rows, prefetcher, acc);
        // Unrolled, so that accumulators stay in registers.
        unrolled<kRows * kPackedTiles>([&](auto i) {
            constexpr int m = decltype(i)::value / kPackedTiles;
            constexpr int j = decltype(i)::value % kPackedTiles;
            const F32 total[] = {acc[m][j] * load(steps[j]) * broadcast(rows[m].paired->step)};
            store_tile_columns(*operands.linear, part, tiles.index[j], total,
                               operands.out + (row + m) * operands.out_stride);
        });
    }
}

PENSTOCK_INLINE void multiply_paired(const AffineOperands& operands, const LinearTask& task) {
    const int64_t units = operands.linear->depth / kUnit;
    const int64_t blocks = ceil_div(task.row_end - task.row_begin, kPairedRows);
    const auto block = [](int64_t left) { return ceil_div(left, ceil_div(left, kPairedRows)); };
    multiply_with_prefetch(
        task, task.row_begin, blocks * units / 2, kPackedTilesAtOnce, block,
        [&](int64_t begin, int64_t end, int64_t row, int64_t rows, PrefetchLines& prefetcher) {
            with_count<kPairedRows>(rows, [&](auto count) {
                with_packed_tiles<count.value>(task, [&](auto packed_tiles) {
                    constexpr int kRows = count.value, kPackedTiles = packed_tiles.value;
                    const auto multiply = task.part->stored_minimum
                                              ? multiply_paired_rows<true, kRows, kPackedTiles>
                                              : multiply_paired_rows<false, kRows, kPackedTiles>;
                    multiply(operands, *task.part, row, begin, end, prefetcher);
                });
            });
        });
}

#else

PENSTOCK_INLINE void multiply_paired(const AffineOperands&, const LinearTask&) {}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
