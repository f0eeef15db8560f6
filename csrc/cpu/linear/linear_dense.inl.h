// linear_dense: float32 activations times f32, f16 or bf16 weights.
//
//   tensor[0]  x [M, K] float32
//   tensor[1]  out [M, sum N] float32; the columns of dense parts are written, with bias
//   tensor[2]  scratch [M, rounded_row_bytes of the weights] u8; without it, each task rounds its
//              rows
//   object     LinearWeights, packed for this ISA
//   integer[0] number of threads that will run the call (0: unknown); affects task sizes only
//
// The arithmetic is the same for every M: even = fma over k = 0, 2, 4 ..., odd = fma over k = 1, 3,
// 5 ..., each in order and in float32; out = (even + odd) + bias. ISAs with tiles or bf16 pairs
// multiply bf16 weights as described in linear_bf16_amx.h and linear_bf16.h. Weights that are
// packed as int16 are multiplied as in linear_int16.h.
#pragma once

#include "cpu/linear/linear_bf16.h"
#include "cpu/linear/linear_bf16_amx.h"
#include "cpu/linear/linear_int16.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/linear/linear_prefetch.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Maximum rows that share one load of packed tiles: their accumulators just fit the registers.
constexpr int kMaxDenseRows = kLanes == 8 ? 3 : 6;

// Returns the weights at one k for the rows of vector `p` of a packed tile; `parity` is k % 2.
template <Encoding encoding, int parity, int p>
PENSTOCK_INLINE F32 dense_weights(const uint8_t* packed_tile, int64_t k) {
    if constexpr (encoding == Encoding::dense_f32) {
        return load(reinterpret_cast<const float*>(packed_tile) + k * kPackedTileRows + p * kLanes);
    } else if constexpr (encoding == Encoding::dense_f16) {
        return load_f16(reinterpret_cast<const uint16_t*>(packed_tile) + k * kPackedTileRows +
                        p * kLanes);
    } else {
        const I32 pair = load(reinterpret_cast<const int32_t*>(packed_tile) +
                              k / 2 * kPackedTileRows + p * kLanes);
        return as_float(parity == 0 ? shift_left<16>(pair) : pair & broadcast(int32_t{-65536}));
    }
}

// Adds the products of one k for all rows. Even and odd k alternate, so that only the accumulators,
// one vector of weights per packed tile vector and one activation are live.
template <Encoding encoding, int parity, int kRows>
PENSTOCK_INLINE void add_products_of(const uint8_t* const (&packed_tile)[kDensePackedTiles],
                                     int64_t k, const float* const (&row)[kRows],
                                     F32 (&sum)[kRows][kDensePackedTiles][kPackedTileVectors]) {
    F32 weight[kDensePackedTiles][kPackedTileVectors];
    unrolled<kDensePackedTiles * kPackedTileVectors>([&](auto i) {
        constexpr int j = decltype(i)::value / kPackedTileVectors,
                      p = decltype(i)::value % kPackedTileVectors;
        weight[j][p] = dense_weights<encoding, parity, p>(packed_tile[j], k);
    });
    unrolled<kRows>([&](auto m) {
        const F32 value = broadcast(row[m.value][k]);
        unrolled<kDensePackedTiles * kPackedTileVectors>([&](auto i) {
            constexpr int j = decltype(i)::value / kPackedTileVectors;
            constexpr int p = decltype(i)::value % kPackedTileVectors;
            F32& s = sum[m.value][j][p];
            s = fma(weight[j][p], value, s);
        });
    });
}

template <Encoding encoding, int kRows>
PENSTOCK_INLINE void
multiply_dense_packed_tiles(const uint8_t* const (&packed_tile)[kDensePackedTiles], int64_t depth,
                            const float* x, int64_t x_stride, PrefetchLines& prefetcher,
                            F32 (&total)[kRows][kDensePackedTiles][kPackedTileVectors]) {
    F32 even[kRows][kDensePackedTiles][kPackedTileVectors] = {};
    F32 odd[kRows][kDensePackedTiles][kPackedTileVectors] = {};
    const float* row[kRows];
    for (int m = 0; m < kRows; ++m)
        row[m] = x + m * x_stride;
    for (int64_t k = 0; k + 1 < depth; k += 2) {
        prefetcher.step();
        add_products_of<encoding, 0>(packed_tile, k, row, even);
        add_products_of<encoding, 1>(packed_tile, k + 1, row, odd);
    }
    if (depth % 2 != 0)
        add_products_of<encoding, 0>(packed_tile, depth - 1, row, even);
    for (int m = 0; m < kRows; ++m) {
        for (int j = 0; j < kDensePackedTiles; ++j) {
            for (int p = 0; p < kPackedTileVectors; ++p)
                total[m][j][p] = even[m][j][p] + odd[m][j][p];
        }
    }
}

struct DenseOperands {
    const LinearWeights* linear;
    const float* x;
    int64_t x_stride;
    float* out;
    int64_t out_stride;
};

template <Encoding encoding, int kRows>
void multiply_dense_rows(const DenseOperands& operands, const PackedMatrix& part, int64_t begin,
                         int64_t end, int64_t row, PrefetchLines& prefetcher) {
    for (int64_t packed_tile = begin; packed_tile < end; packed_tile += kDensePackedTiles) {
        PackedTileGroup<kDensePackedTiles> tiles(part, packed_tile, end);
        F32 total[kRows][kDensePackedTiles][kPackedTileVectors];
        multiply_dense_packed_tiles<encoding, kRows>(tiles.data, operands.linear->depth,
                                                     operands.x + row * operands.x_stride,
                                                     operands.x_stride, prefetcher, total);
        for (int m = 0; m < kRows; ++m) {
            for (int j = 0; j < kDensePackedTiles; ++j) {
                store_tile_columns(*operands.linear, part, tiles.index[j], total[m][j],
                                   operands.out + (row + m) * operands.out_stride);
            }
        }
    }
}

// Multiplies the rows of a task in blocks of the largest size, then in twos: few sizes keep the
// code small.
template <Encoding encoding>
void multiply_dense_task(const DenseOperands& operands, const LinearTask& task) {
    constexpr int64_t kMax = kMaxDenseRows;
    const PackedMatrix& part = *task.part;
    const int64_t rows = task.row_end - task.row_begin;
    const int64_t steps = (rows / kMax + ceil_div(rows % kMax, 2)) * (operands.linear->depth / 2);
    const auto block = [](int64_t left) { return left >= kMax ? kMax : left >= 2 ? 2 : 1; };
    const auto multiply = [&](int64_t begin, int64_t end, int64_t row, int64_t count,
                              PrefetchLines& prefetcher) {
        switch (count) {
        case 1:
            multiply_dense_rows<encoding, 1>(operands, part, begin, end, row, prefetcher);
            break;
        case 2:
            multiply_dense_rows<encoding, 2>(operands, part, begin, end, row, prefetcher);
            break;
        default:
            multiply_dense_rows<encoding, kMax>(operands, part, begin, end, row, prefetcher);
            break;
        }
    };
    multiply_with_prefetch(task, task.row_begin, steps, kDensePackedTiles, block, multiply);
}

// Returns whether phase 0 of a call rounds its rows for all tasks of phase 1.
PENSTOCK_INLINE bool rounds_once(const Arguments& arguments) {
    const auto& linear = *static_cast<const LinearWeights*>(arguments.object);
    return kInt16Products && linear.rounded_row_bytes > 0 && arguments.tensor[2].data != nullptr &&
           arguments.tensor[0].shape[0] >= kMinSharedRows;
}

inline int linear_dense_phases(const Arguments& arguments) {
    return rounds_once(arguments) ? 2 : 1;
}

inline int64_t linear_dense_tasks(const Arguments& arguments, int phase) {
    const TensorView& x = arguments.tensor[0];
    if (phase == 0 && rounds_once(arguments))
        return RoundingTasks::count(x.shape[0], x.shape[1]);
    return LinearPartition::tasks(LinearPartition::make(arguments, false));
}

// Rounds one row in the formats of all dense parts.
PENSTOCK_INLINE void round_row_once(const LinearWeights& linear, const float* x, uint8_t* to) {
#if defined(PENSTOCK_INT16_PRODUCTS)
    bool bf16 = false, int16 = false;
    for (int i = 0; i < linear.num_parts; ++i) {
        bf16 = bf16 || linear.parts[i].encoding == Encoding::dense_bf16;
        int16 = int16 || linear.parts[i].encoding == Encoding::dense_i16;
    }
#if defined(PENSTOCK_BF16_PAIRS)
    if (bf16)
        Bf16Format::round(x, linear.depth, to + Bf16Format::row_offset(linear));
#endif
    if (int16)
        Int16Format::round(x, linear.depth, to + Int16Format::row_offset(linear));
#else
    (void)linear, (void)x, (void)to;
#endif
}

// Runs one task of the dense parts, from the rows of `x` to those of `out`. `rounded`: the rows of
// `x` in the formats of all dense parts, or without memory.
inline void multiply_dense(const LinearWeights& linear, const LinearTask& task, const TensorView& x,
                           const TensorView& rounded, const TensorView& out, Workspace& workspace) {
    (void)rounded; // read by ISAs with int16 products only
    const DenseOperands operands{&linear, static_cast<const float*>(x.data), x.stride[0],
                                 static_cast<float*>(out.data), out.stride[0]};
    switch (task.part->encoding) {
    case Encoding::dense_f32: multiply_dense_task<Encoding::dense_f32>(operands, task); break;
    case Encoding::dense_f16: multiply_dense_task<Encoding::dense_f16>(operands, task); break;
#if defined(PENSTOCK_INT16_PRODUCTS)
    case Encoding::dense_i16:
        multiply_rounded<Int16Format>(linear, task, x, rounded, out, workspace);
        break;
#endif
    default:
        if constexpr (kTiles) {
            multiply_bf16_tiles(linear, task, x, out, workspace);
        } else {
#if defined(PENSTOCK_BF16_PAIRS)
            multiply_rounded<Bf16Format>(linear, task, x, rounded, out, workspace);
#else
            multiply_dense_task<Encoding::dense_bf16>(operands, task);
#endif
        }
        break;
    }
}

inline void linear_dense_run(const Arguments& arguments, int phase, int64_t index,
                             Workspace& workspace) {
    const TensorView &x = arguments.tensor[0], &rounded = arguments.tensor[2];
    const bool once = rounds_once(arguments);
    if (phase == 0 && once) {
        const auto& linear = *static_cast<const LinearWeights*>(arguments.object);
        return RoundingTasks::each(index, x.shape[0], linear.depth, [&](int64_t row) {
            round_row_once(linear, x.row<float>(row), rounded.row<uint8_t>(row));
        });
    }
    const LinearPartition cut = LinearPartition::make(arguments, false);
    const LinearTask task = LinearPartition::task(cut, index);
    multiply_dense(*cut.linear, task, x, once ? rounded : TensorView{}, arguments.tensor[1],
                   workspace);
}

// Returns the bytes of a thread's rounded activations.
PENSTOCK_INLINE size_t dense_workspace_bytes(const LinearWeights& linear) {
    if (kTiles)
        return bf16_workspace_bytes(linear);
    if (!kInt16Products || linear.rounded_row_bytes == 0)
        return 0;
    const int64_t bf16 = bf16_row_bytes(linear.depth), int16 = fixed_row_bytes(linear.depth);
    const int64_t of_bf16 = rounded_rows(bf16) * bf16, of_int16 = rounded_rows(int16) * int16;
    return static_cast<size_t>(of_bf16 > of_int16 ? of_bf16 : of_int16);
}

inline size_t linear_dense_workspace_bytes(const Arguments& arguments) {
    return dense_workspace_bytes(*static_cast<const LinearWeights*>(arguments.object));
}

constexpr Kernel kLinearDenseKernels[] = {
    {"linear_dense", linear_dense_phases, linear_dense_tasks, linear_dense_run,
     linear_dense_workspace_bytes, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
