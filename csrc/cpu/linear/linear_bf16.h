// Products of bf16 weights in pairs (VDPBF16PS). Included by linear_dense.inl.h.
//
// Activations are rounded to bf16, half to even, for any number of rows. The arithmetic is the same
// for every M: even = add_bf16_pairs over the pairs of k number 0, 2, 4 ..., odd = add_bf16_pairs
// over the pairs number 1, 3, 5 ..., each in order; out = (even + odd) + bias.
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Pairs of k per prefetch step. More frequent steps would need registers that are not free.
constexpr int64_t kPairsEach = 16;

PENSTOCK_INLINE size_t pairs_workspace_bytes(const LinearWeights& linear) {
    return static_cast<size_t>(rounded_rows(linear.depth) * bf16_row_bytes(linear.depth));
}

#if defined(PENSTOCK_BF16_PAIRS)

PENSTOCK_INLINE void round_to_pairs(const float* x, int64_t depth, uint16_t* to) {
    for (int64_t k = 0; k < depth; k += kLanes) {
        const int64_t left = depth - k;
        round_bf16(to + k, left < kLanes ? load(x + k, static_cast<int>(left)) : load(x + k));
    }
}

template <int kRows>
PENSTOCK_INLINE void multiply_pairs(const uint16_t* packed_tile, int64_t pairs,
                                    const uint16_t* const (&row)[kRows], PrefetchLines& prefetcher,
                                    F32 (&sum)[kRows][2]) {
    const auto add = [&](int64_t pair, auto parity) {
        const Bf16Pairs weight = load_bf16_pairs(packed_tile + pair * 2 * kPackedTileRows);
        unrolled<kRows>([&](auto m) {
            F32& s = sum[m.value][parity.value];
            s = add_bf16_pairs(s, weight, broadcast_bf16_pair(row[m.value] + 2 * pair));
        });
    };
    int64_t pair = 0;
    while (pair + 1 < pairs) {
        prefetcher.step();
        const int64_t end = pair + kPairsEach < pairs ? pair + kPairsEach : pairs;
        for (; pair + 1 < end; pair += 2) {
            add(pair, Index<0>{});
            add(pair + 1, Index<1>{});
        }
    }
    if (pair < pairs)
        add(pair, Index<0>{});
}

// Operands of a product with a group of rows.
struct PairOperands {
    const LinearWeights* linear;
    const PackedMatrix* part;
    float* out;
    int64_t out_stride;
    const uint16_t* rounded; // rows of activations in bf16
    int64_t stride;          // of these rows
};

// Multiplies rows [row, row + kRows) of the group with one packed tile. Returns kRows.
template <int kRows>
int64_t multiply_pair_rows(const PairOperands& operands, int64_t packed_tile, int64_t row,
                           PrefetchLines& prefetcher) {
    const PackedMatrix& part = *operands.part;
    const uint8_t* weights = part.data + packed_tile * part.packed_tile_bytes;
    const uint16_t* in[kRows];
    for (int m = 0; m < kRows; ++m)
        in[m] = operands.rounded + (row + m) * operands.stride;
    F32 sum[kRows][2];
    set_zero(sum);
    multiply_pairs<kRows>(reinterpret_cast<const uint16_t*>(weights),
                          ceil_div(operands.linear->depth, 2), in, prefetcher, sum);
    for (int m = 0; m < kRows; ++m) {
        const F32 total[kPackedTileVectors] = {sum[m][0] + sum[m][1]};
        store_tile_columns(*operands.linear, part, packed_tile, total,
                           operands.out + (row + m) * operands.out_stride);
    }
    return kRows;
}

// Multiplies the next of `left` rows and returns their number: the largest block size that fits.
// Few sizes keep the code small.
PENSTOCK_INLINE int64_t multiply_pair_block(const PairOperands& operands, int64_t packed_tile,
                                            int64_t row, int64_t left, PrefetchLines& prefetcher) {
    if (left >= kMaxPairRows)
        return multiply_pair_rows<kMaxPairRows>(operands, packed_tile, row, prefetcher);
    if (left >= 8)
        return multiply_pair_rows<8>(operands, packed_tile, row, prefetcher);
    if (left >= 4)
        return multiply_pair_rows<4>(operands, packed_tile, row, prefetcher);
    return left >= 2 ? multiply_pair_rows<2>(operands, packed_tile, row, prefetcher)
                     : multiply_pair_rows<1>(operands, packed_tile, row, prefetcher);
}

// Multiplies a group of rows, rounded once, with each packed tile of the task in turn.
PENSTOCK_INLINE void multiply_bf16_pairs(const LinearWeights& linear, const LinearTask& task,
                                         const TensorView& x, const TensorView& out,
                                         Workspace& workspace) {
    auto* const rounded = static_cast<uint16_t*>(workspace.data);
    const int64_t stride = bf16_row_bytes(linear.depth) / static_cast<int64_t>(sizeof(uint16_t));
    const int64_t steps = ceil_div(ceil_div(linear.depth, 2), kPairsEach);
    const int64_t group = rounded_rows(linear.depth);
    for (int64_t first = task.row_begin; first < task.row_end; first += group) {
        const int64_t left = task.row_end - first, rows = left < group ? left : group;
        for (int64_t row = 0; row < rows; ++row)
            round_to_pairs(x.row<float>(first + row), linear.depth, rounded + row * stride);
        const PairOperands operands{&linear,       task.part, out.row<float>(first),
                                    out.stride[0], rounded,   stride};
        for (int64_t tile = task.packed_tile_begin; tile < task.packed_tile_end; ++tile) {
            PrefetchLines prefetcher =
                first == task.row_begin
                    ? prefetch_next_tiles(task, tile, 1, steps * ceil_div(rows, kMaxPairRows))
                    : PrefetchLines();
            for (int64_t row = 0; row < rows;)
                row += multiply_pair_block(operands, tile, row, rows - row, prefetcher);
        }
    }
}

#else

PENSTOCK_INLINE void multiply_bf16_pairs(const LinearWeights&, const LinearTask&, const TensorView&,
                                         const TensorView&, Workspace&) {}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
