// How a product is cut into tasks: over chunks of panels, and over blocks of rows where there are
// many. Never over K: each output is summed by one task, in one order.
#pragma once

#include "cpu/panel.h"
#include "cpu/processor.h"
#include "cpu/simd.h"
#include "cpu/sizes.h"
#include "cpu/tiles.h"
#include "cpu/unrolled.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

// Most rows that share one pass over a chunk of weights. A multiple of 6 and of 16.
constexpr int64_t kRowBlock = 96;
// Blocks of rows are nearly equal, so that threads end together, in multiples of this. Tiles take
// whole blocks, and what is left.
constexpr int64_t kRowStep = kTiles ? kRowBlock : 12;
// A chunk stays in the second-level cache while a row block passes over it.
constexpr int64_t kMaxChunkBytes = 256 * 1024;
// Below this a task costs less than handing it out.
constexpr int64_t kMinChunkBytes = 12 * 1024;
constexpr int64_t kTasksPerThread = 8;
constexpr int64_t kDefaultThreads = 4;

// Float vectors of a panel's 16 rows.
constexpr int kPanelVectors = kPanelRows / kLanes;

// Panels that products take beside each other, where registers hold the sums of two: of floats, so
// that they share each activation that is read; of integers, so that their chains hide each other's
// latency (Intel's processors take two VPDPBUSD a cycle, each five cycles long). Minima by tiles
// are of one panel at a time.
constexpr int kDensePanels = kPanelVectors == 1 ? 2 : 1;
constexpr int kPanelsBeside = kTiles ? 1 : kDensePanels;
// Most rows that share what is read of integer panels: as many sums as the registers hold. Arrays
// have no registers to fill, only code to compile.
#if defined(PENSTOCK_SIMD_ARRAY)
constexpr int kRegisterRows = 2;
#else
constexpr int kRegisterRows = kPanelsBeside == 2 ? 6 : 4;
#endif

// What one task computes: rows [row_begin, row_end) of the panels [panel_begin, panel_end).
struct LinearTask {
    const PanelPart* part;
    int64_t panel_begin;
    int64_t panel_end;
    int64_t row_begin;
    int64_t row_end;
    // The first panel of the next task, which the same thread is likely to do; null: there is none.
    const uint8_t* next = nullptr;
    int64_t next_panels = 0;
    int64_t next_panel_bytes = 0;
};

// Bytes of a row of activations rounded to bf16, padded to whole vectors. The odd line spreads rows
// over the cache sets.
PENSTOCK_INLINE int64_t bf16_row_bytes(int64_t depth) {
    return ceil_div(depth, kUnit) * kUnit * static_cast<int64_t>(sizeof(uint16_t)) + 64;
}

// The least of fetching_rows, but for Zen 5.
constexpr int kLeastFetchingRows = 4;

// Rows from which on a panel is computed with for about as long as memory takes to bring the next.
// Fewer only wait, and the hardware streams that best, but for Zen 5: it waits a third less for one
// row of 4-bit weights that it was told of. Measured with AVX-512 on two cores. Zen 3, which has
// AVX2, waits 5 to 20 % less for one to three rows of integer weights.
PENSTOCK_INLINE int64_t fetching_rows(Encoding encoding) {
    if (processor() == Processor::zen5)
        return encoding == Encoding::dense_f32 ? 4 : 1;
    if (kPanelVectors > 1 && processor() == Processor::amd && is_affine(encoding))
        return 1;
    switch (encoding) {
    case Encoding::affine4:
    case Encoding::table4:
    case Encoding::float4:
    case Encoding::affine8: return kLeastFetchingRows;
    case Encoding::affine6:
    case Encoding::dense_f16: return 5;
    default: return 8;
    }
}

PENSTOCK_INLINE bool worth_fetching(const LinearTask& task) {
    return task.row_end - task.row_begin >= fetching_rows(task.part->encoding);
}

// f(Index<kPanels>) for the integer panels that kRows rows of a task take beside each other: one
// where too few rows to fetch for wait for memory, as two are two streams, which take longer.
template <int kRows, class Function>
PENSTOCK_INLINE void with_panels(const LinearTask& task, const Function& f) {
    if constexpr (kPanelsBeside > 1 && kRows < kLeastFetchingRows) {
        if (!worth_fetching(task))
            return f(Index<1>{});
    }
    f(Index<kPanelsBeside>{});
}

// The cut of the affine, or of the dense, parts of a product of `rows` rows.
struct LinearCut {
    const LinearPanels* linear;
    bool affine;
    int64_t rows;
    int64_t row_blocks;
    int64_t chunk_bytes;

    // Of a call as linear_affine and linear_dense take it.
    PENSTOCK_INLINE LinearCut make(const Arguments& call, bool affine) {
        const auto& linear = *static_cast<const LinearPanels*>(call.object);
        const int64_t rows = call.tensor[0].shape[0], threads = call.integer[0];
        int64_t total = 0;
        for (int i = 0; i < linear.num_parts; ++i) {
            const PanelPart& part = linear.parts[i];
            if (is_affine(part.encoding) == affine)
                total += part.panels * part.panel_bytes;
        }
        const int64_t blocks = ceil_div(rows, kRowBlock);
        const int64_t wanted = (threads > 0 ? threads : kDefaultThreads) * kTasksPerThread;
        int64_t bytes = ceil_div(total * blocks, wanted);
        bytes = bytes < kMinChunkBytes ? kMinChunkBytes : bytes;
        bytes = bytes > kMaxChunkBytes ? kMaxChunkBytes : bytes;
        return {&linear, affine, rows, blocks, bytes};
    }

    PENSTOCK_INLINE int64_t chunk_panels(const LinearCut& cut, const PanelPart& part) {
        const int64_t beside = is_affine(part.encoding) ? kPanelsBeside : kDensePanels;
        const int64_t panels = quotient(cut.chunk_bytes, part.panel_bytes) / beside * beside;
        return panels < beside ? beside : panels;
    }

    PENSTOCK_INLINE int64_t chunks(const LinearCut& cut, const PanelPart& part) {
        if (is_affine(part.encoding) != cut.affine)
            return 0;
        return ceil_div(part.panels, chunk_panels(cut, part));
    }

    PENSTOCK_INLINE int64_t tasks(const LinearCut& cut) {
        int64_t count = 0;
        for (int i = 0; i < cut.linear->num_parts; ++i)
            count += chunks(cut, cut.linear->parts[i]);
        return count * cut.row_blocks;
    }

    PENSTOCK_INLINE LinearTask task(const LinearCut& cut, int64_t index) {
        LinearTask task = task_alone(cut, index);
        if (worth_fetching(task) && index + 1 < tasks(cut)) {
            const LinearTask next = task_alone(cut, index + 1);
            task.next = next.part->data + next.panel_begin * next.part->panel_bytes;
            task.next_panels = next.panel_end - next.panel_begin;
            task.next_panel_bytes = next.part->panel_bytes;
        }
        return task;
    }

  private:
    // Row blocks vary fastest, so that threads at work share chunks in the outer cache.
    PENSTOCK_INLINE LinearTask task_alone(const LinearCut& cut, int64_t index) {
        const int64_t block = remainder(index, cut.row_blocks);
        int64_t chunk = quotient(index, cut.row_blocks);
        int i = 0;
        while (chunk >= chunks(cut, cut.linear->parts[i])) {
            chunk -= chunks(cut, cut.linear->parts[i]);
            ++i;
        }
        const PanelPart& part = cut.linear->parts[i];
        const int64_t panels = chunk_panels(cut, part);
        const int64_t begin = chunk * panels;
        const int64_t end = begin + panels < part.panels ? begin + panels : part.panels;
        return {&part, begin, end, first_row(cut, block), first_row(cut, block + 1)};
    }

    // Of a block of rows; of the block after the last one, the number of rows.
    PENSTOCK_INLINE int64_t first_row(const LinearCut& cut, int64_t block) {
        const int64_t steps = ceil_div(cut.rows, kRowStep);
        const int64_t row = quotient(steps * block, cut.row_blocks) * kRowStep;
        return row < cut.rows ? row : cut.rows;
    }
};

// Panels from `panel` on of a part, before `end`. Where too few are left, the first one stands in:
// it is multiplied and stored twice.
template <int kPanels>
struct PanelsBeside {
    int64_t index[kPanels];
    const uint8_t* data[kPanels];

    PanelsBeside(const PanelPart& part, int64_t panel, int64_t end) {
        for (int j = 0; j < kPanels; ++j) {
            index[j] = panel + j < end ? panel + j : panel;
            data[j] = part.data + index[j] * part.panel_bytes;
        }
    }
};

// Adds the bias and writes the columns of one panel for one row of the output.
PENSTOCK_INLINE void store_panel(const LinearPanels& linear, const PanelPart& part, int64_t panel,
                                 const F32 (&values)[kPanelVectors], float* out_row) {
    for (int p = 0; p < kPanelVectors; ++p) {
        F32 value = values[p];
        const int64_t left = part.rows - panel * kPanelRows - p * kLanes;
        const int64_t column = part.column + panel * kPanelRows + p * kLanes;
        if (left >= kLanes) {
            if (linear.bias != nullptr)
                value = value + load(linear.bias + column);
            store(out_row + column, value);
        } else if (left > 0) {
            const int n = static_cast<int>(left);
            if (linear.bias != nullptr)
                value = value + load(linear.bias + column, n);
            store(out_row + column, value, n);
        }
    }
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
