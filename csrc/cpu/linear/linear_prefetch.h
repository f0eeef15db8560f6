// In which order a task multiplies its rows and packed tiles, and what it fetches meanwhile.
//
// A product of a few rows waits for each packed tile once, and then computes with it for about as
// long. The hardware fetches ahead only within a page, so memory and arithmetic would take turns.
// Asking for a few lines of the next packed tile at each step lets them go on together; to the
// second cache level, which takes twice the misses at a time that the first one does.
#pragma once

#include "cpu/linear/linear_partition.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Lines that are fetched a few at a time while something else is computed.
class PrefetchLines {
  public:
    // None.
    PrefetchLines() = default;

    // All of [begin, begin + bytes) in `steps` steps.
    PrefetchLines(const uint8_t* begin, int64_t bytes, int64_t steps)
        : line_(begin), end_(begin + bytes),
          lines_each_(ceil_div(ceil_div(bytes, kLineBytes), steps < 1 ? 1 : steps)) {}

    void step() {
        for (int64_t i = 0; i < lines_each_ && line_ < end_; ++i, line_ += kLineBytes)
            prefetch_l2(line_);
    }

    // A step of ranges of one size, line by line in turns: 4 % of a product faster than range by
    // range.
    template <int count>
    static void step(PrefetchLines (&ranges)[count]) {
        const PrefetchLines& first = ranges[0];
        for (int64_t i = 0; i < first.lines_each_ && first.line_ < first.end_; ++i) {
            for (PrefetchLines& range : ranges) {
                prefetch_l2(range.line_);
                range.line_ += kLineBytes;
            }
        }
    }

  private:
    const uint8_t* line_ = nullptr;
    const uint8_t* end_ = nullptr;
    int64_t lines_each_ = 0;
};

// What follows `count` packed tiles of a task from `first` on, which are multiplied in `steps`
// steps: as many packed tiles, or what there is of them. None where that is not worth it.
PENSTOCK_INLINE PrefetchLines prefetch_next_tiles(const LinearTask& task, int64_t first,
                                                  int64_t count, int64_t steps) {
    if (!should_prefetch(task))
        return {};
    const PackedMatrix& part = *task.part;
    const int64_t end = first + count, left = task.packed_tile_end - end;
    if (left > 0) {
        const int64_t bytes = (left < count ? left : count) * part.packed_tile_bytes;
        return {part.data + end * part.packed_tile_bytes, bytes, steps};
    }
    const int64_t packed_tiles = task.next_packed_tiles < count ? task.next_packed_tiles : count;
    return {task.next, packed_tiles * task.next_packed_tile_bytes, steps};
}

// Calls multiply(packed_tile_begin, packed_tile_end, row, rows, ahead) for all packed tiles of a
// task and its rows from `row_begin` on. `beside`: how many packed tiles go together;
// `block(left)`: how many of the rows that are left; `steps`: how often all rows call ahead.step()
// for so many packed tiles.
//
// Where fetching ahead is worth it, all rows are multiplied with one packed tile while the next one
// comes; else a few rows stay near and take all packed tiles.
template <class Block, class Multiply>
PENSTOCK_INLINE void multiply_with_prefetch(const LinearTask& task, int64_t row_begin,
                                            int64_t steps, int64_t beside, const Block& block,
                                            const Multiply& multiply) {
    const bool fetching = row_begin == task.row_begin && should_prefetch(task);
    const int64_t at_once = fetching ? beside : task.packed_tile_end - task.packed_tile_begin;
    for (int64_t first = task.packed_tile_begin; first < task.packed_tile_end; first += at_once) {
        const int64_t end =
            first + at_once < task.packed_tile_end ? first + at_once : task.packed_tile_end;
        PrefetchLines ahead =
            fetching ? prefetch_next_tiles(task, first, end - first, steps) : PrefetchLines();
        for (int64_t row = row_begin; row < task.row_end;) {
            const int64_t rows = block(task.row_end - row);
            multiply(first, end, row, rows, ahead);
            row += rows;
        }
    }
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
