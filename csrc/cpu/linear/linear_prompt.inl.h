// Products of prompt tokens: activations times affine weights, both rounded to bf16, in matrix
// tiles. Only ISAs with tiles have these kernels. docs/decisions/0026-prompts-through-tiles.md
//
// round_rows
//   tensor[0]  x [M, K] float32, K a multiple of 32
//   tensor[1]  bf16 [M, bf16_row_bytes(K)] u8, 64-byte aligned
//
// linear_prompt
//   tensor[0]  bf16 [M, bf16_row_bytes(K)] u8, written by round_rows
//   tensor[1]  out [M, sum N] float32; the columns of affine parts are written, with bias
//   object     LinearWeights, packed for any ISA
//   integer[0] number of threads that will run the call (0: unknown); affects task sizes only
//
// The arithmetic is the same for every M: x is rounded to bf16, half to even, and weights as in
// dequantized_panel.h; out = the tile products of steps of 32 k, added in order, + bias.
//
// A task dequantizes a panel of 32 columns once for a block of rows. The depth is divided so that a
// panel and the activations that it multiplies stay in the L2 cache; sums then wait in memory
// between two divisions, which changes no bit.
#pragma once

#include "cpu/linear/dequantized_panel.h"
#include "cpu/linear/linear_bf16_amx.h"
#include "cpu/linear/linear_partition.h"
#include "cpu/row_tasks.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)

constexpr int64_t kPanelColumns = kPanelTiles * kPackedTileRows;
// Rows and columns of the accumulators of an inner loop: four tiles.
constexpr int64_t kPanelRows = 2 * kTileRows;
// Units of a division of the depth, a multiple of kUnitsPerSuper: 128 KB of a panel.
constexpr int64_t kPanelUnits = 64;
// Maximum bytes of the activations that pass over a panel, and their maximum number of rows.
constexpr int64_t kPanelActivations = 1 << 20;
constexpr int64_t kMaxPanelRows = 512;
static_assert(kPanelUnits % kUnitsPerSuper == 0 && kMaxPanelRows % kPanelRows == 0);

// The memory of a task: a panel, and the sums of a block of rows, [rows][kPanelColumns].
struct PanelBuffers {
    PanelUnit panel[kPanelUnits];
    alignas(64) float sums[kMaxPanelRows][kPanelColumns];
};

// Returns the number of rows that pass over a panel together, of `rows` in all.
PENSTOCK_INLINE int64_t panel_rows(int64_t rows, int64_t depth) {
    const int64_t units = depth / kUnit < kPanelUnits ? depth / kUnit : kPanelUnits;
    const int64_t fit = quotient(kPanelActivations, 2 * kUnit * units) / kPanelRows * kPanelRows;
    const int64_t most = fit < kMaxPanelRows ? fit : kMaxPanelRows;
    const int64_t steps = ceil_div(rows, kPanelRows);
    return ceil_div(steps, ceil_div(rows, most)) * kPanelRows;
}

// A product of one part: the rows of a block times the packed tiles of a panel.
struct PanelProduct {
    const LinearWeights* linear;
    const PackedMatrix* part;
    Dequantize* dequantize;
    const uint8_t* x; // the first row of the block
    int64_t x_stride; // in bytes
    float* out;       // the first row of the block
    int64_t out_stride;
    int64_t rows;
};

// Configures the tiles. 0 to 3: sums of up to 32 rows and 32 columns; 4, 5: activations of these
// rows; 6, 7: weights.
PENSTOCK_INLINE void configure_panel(int64_t rows) {
    const auto first = static_cast<uint8_t>(rows < kTileRows ? rows : kTileRows);
    const auto second = static_cast<uint8_t>(rows > kTileRows ? rows - kTileRows : 1);
    configure_tiles({{first, 64},
                     {first, 64},
                     {second, 64},
                     {second, 64},
                     {first, 64},
                     {second, 64},
                     {16, 64},
                     {16, 64}});
}

constexpr int64_t kSumStride = kPanelColumns * sizeof(float);

// Adds the products of `units` units to the sums of up to 32 rows. `fresh`: the sums start at 0.
// kTall: there are more than 16 rows. kWide: the panel has two packed tiles.
template <bool kTall, bool kWide>
void multiply_panel(const PanelUnit* panel, int64_t units, const uint8_t* x, int64_t x_stride,
                    bool fresh, float* sums) {
    float* const lower = sums + kTileRows * kPanelColumns;
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    if (!fresh) {
        load_tile<0>(sums, kSumStride);
        if constexpr (kWide)
            load_tile<1>(sums + kPackedTileRows, kSumStride);
        if constexpr (kTall)
            load_tile<2>(lower, kSumStride);
        if constexpr (kTall && kWide)
            load_tile<3>(lower + kPackedTileRows, kSumStride);
    }
    for (int64_t unit = 0; unit < units; ++unit) {
        load_tile<6>(panel[unit].tile[0], 4 * kPackedTileRows);
        load_tile<4>(x + unit * 2 * kUnit, x_stride);
        multiply_bf16<0, 4, 6>();
        if constexpr (kWide) {
            load_tile<7>(panel[unit].tile[1], 4 * kPackedTileRows);
            multiply_bf16<1, 4, 7>();
        }
        if constexpr (kTall) {
            load_tile<5>(x + kTileRows * x_stride + unit * 2 * kUnit, x_stride);
            multiply_bf16<2, 5, 6>();
        }
        if constexpr (kTall && kWide)
            multiply_bf16<3, 5, 7>();
    }
    store_tile<0>(sums, kSumStride);
    if constexpr (kWide)
        store_tile<1>(sums + kPackedTileRows, kSumStride);
    if constexpr (kTall)
        store_tile<2>(lower, kSumStride);
    if constexpr (kTall && kWide)
        store_tile<3>(lower + kPackedTileRows, kSumStride);
}

// Adds the bias and writes the columns of a panel for up to 32 rows.
PENSTOCK_INLINE void store_panel(const PanelProduct& product, int64_t packed_tile, int tiles,
                                 int64_t row, int64_t rows, const float* sums) {
    for (int64_t m = 0; m < rows; ++m) {
        for (int j = 0; j < tiles; ++j) {
            const F32 values[kPackedTileVectors] = {
                load(sums + m * kPanelColumns + j * kPackedTileRows)};
            store_tile_columns(*product.linear, *product.part, packed_tile + j, values,
                               product.out + (row + m) * product.out_stride);
        }
    }
}

// Multiplies the rows of a block with the panel that starts at `packed_tile`.
template <bool kWide>
PENSTOCK_INLINE void multiply_columns(const PanelProduct& product, int64_t packed_tile,
                                      PanelBuffers& buffers) {
    constexpr int kCount = kWide ? 2 : 1;
    const PackedMatrix& part = *product.part;
    const int64_t units = product.linear->depth / kUnit;
    const uint8_t *start[kCount], *at[kCount];
    for (int j = 0; j < kCount; ++j) {
        start[j] = part.data + (packed_tile + j) * part.packed_tile_bytes;
        at[j] = start[j] + head_bytes(part);
    }
    int64_t configured = 0;
    for (int64_t first = 0; first < units; first += kPanelUnits) {
        const int64_t count = units - first < kPanelUnits ? units - first : kPanelUnits;
        for (int j = 0; j < kCount; ++j)
            at[j] = product.dequantize(part, start[j], at[j], count, buffers.panel, j);
        const bool last = first + count == units;
        for (int64_t row = 0; row < product.rows; row += kPanelRows) {
            const int64_t left = product.rows - row;
            const int64_t rows = left < kPanelRows ? left : kPanelRows;
            if (rows != configured)
                configure_panel(rows);
            configured = rows;
            const uint8_t* x = product.x + row * product.x_stride + first * 2 * kUnit;
            float* sums = buffers.sums[row];
            const auto multiply =
                rows > kTileRows ? multiply_panel<true, kWide> : multiply_panel<false, kWide>;
            multiply(buffers.panel, count, x, product.x_stride, first == 0, sums);
            if (last)
                store_panel(product, packed_tile, kCount, row, rows, sums);
        }
    }
}

// The division of the affine parts of a layer: a task is a range of the panels of a part.
struct PanelPartition {
    const LinearWeights* linear;
    int64_t panels_each; // of a task

    PENSTOCK_INLINE int64_t panels(const PackedMatrix& part) {
        return is_affine(part.encoding) ? ceil_div(part.packed_tiles, kPanelTiles) : 0;
    }
    PENSTOCK_INLINE PanelPartition make(const Arguments& call) {
        const auto& linear = *static_cast<const LinearWeights*>(call.object);
        const int64_t threads = call.integer[0] > 0 ? call.integer[0] : kDefaultThreads;
        int64_t total = 0;
        for (int i = 0; i < linear.num_parts; ++i)
            total += panels(linear.parts[i]);
        const int64_t each = quotient(total, threads * kTasksPerThread);
        return {&linear, each < 1 ? 1 : each};
    }
    PENSTOCK_INLINE int64_t tasks(const PanelPartition& cut, const PackedMatrix& part) {
        return ceil_div(panels(part), cut.panels_each);
    }
    PENSTOCK_INLINE int64_t tasks(const PanelPartition& cut) {
        int64_t count = 0;
        for (int i = 0; i < cut.linear->num_parts; ++i)
            count += tasks(cut, cut.linear->parts[i]);
        return count;
    }
};

inline int64_t linear_prompt_tasks(const Arguments& arguments, int) {
    if (arguments.tensor[0].shape[0] == 0)
        return 0;
    return PanelPartition::tasks(PanelPartition::make(arguments));
}

inline void linear_prompt_run(const Arguments& arguments, int, int64_t index,
                              Workspace& workspace) {
    const PanelPartition cut = PanelPartition::make(arguments);
    const LinearWeights& linear = *cut.linear;
    int i = 0;
    while (index >= PanelPartition::tasks(cut, linear.parts[i]))
        index -= PanelPartition::tasks(cut, linear.parts[i++]);
    const PackedMatrix& part = linear.parts[i];
    const int64_t begin = index * cut.panels_each * kPanelTiles;
    const int64_t stop = begin + cut.panels_each * kPanelTiles;
    const int64_t end = stop < part.packed_tiles ? stop : part.packed_tiles;
    const TensorView &x = arguments.tensor[0], &out = arguments.tensor[1];
    auto& buffers = *static_cast<PanelBuffers*>(workspace.data);
    const int64_t rows = x.shape[0], each = panel_rows(rows, linear.depth);
    for (int64_t row = 0; row < rows; row += each) {
        const PanelProduct product{&linear,
                                   &part,
                                   dequantize_of(part),
                                   x.row<uint8_t>(row),
                                   x.stride[0],
                                   out.row<float>(row),
                                   out.stride[0],
                                   rows - row < each ? rows - row : each};
        for (int64_t packed_tile = begin; packed_tile < end; packed_tile += kPanelTiles) {
            packed_tile + 1 < end ? multiply_columns<true>(product, packed_tile, buffers)
                                  : multiply_columns<false>(product, packed_tile, buffers);
        }
    }
    release_tiles();
}

inline size_t linear_prompt_workspace_bytes(const Arguments&) {
    return sizeof(PanelBuffers);
}

// Numbers that a task rounds.
using RoundRowTasks = RowTasks<4096>;

inline int64_t round_rows_tasks(const Arguments& arguments, int) {
    const TensorView& x = arguments.tensor[0];
    return RoundRowTasks::count(x.shape[0], x.shape[1]);
}

inline void round_rows_run(const Arguments& arguments, int, int64_t task, Workspace&) {
    const TensorView &x = arguments.tensor[0], &rounded = arguments.tensor[1];
    RoundRowTasks::each(task, x.shape[0], x.shape[1], [&](int64_t row) {
        round_row(x.row<float>(row), x.shape[1], rounded.row<uint8_t>(row));
    });
}

constexpr Kernel kLinearPromptKernels[] = {
    {"round_rows", one_phase, round_rows_tasks, round_rows_run, no_workspace, true},
    {"linear_prompt", one_phase, linear_prompt_tasks, linear_prompt_run,
     linear_prompt_workspace_bytes, true},
};

#else

constexpr std::span<const Kernel> kLinearPromptKernels{};

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
