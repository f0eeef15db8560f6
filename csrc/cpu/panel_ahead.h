// In which order a task multiplies its rows and panels, and what it fetches meanwhile.
//
// A product of a few rows waits for each panel once, and then computes with it for about as long.
// The hardware fetches ahead only within a page, so memory and arithmetic would take turns. Asking
// for a few lines of the next panel at each step lets them go on together; to the second cache
// level, which takes twice the misses at a time that the first one does.
#pragma once

#include "cpu/linear_cut.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

// Lines that are fetched a few at a time while something else is computed.
class LinesAhead {
  public:
    // None.
    LinesAhead() = default;

    // All of [begin, begin + bytes) in `steps` steps.
    LinesAhead(const uint8_t* begin, int64_t bytes, int64_t steps)
        : line_(begin), end_(begin + bytes),
          lines_each_(ceil_div(ceil_div(bytes, kLineBytes), steps < 1 ? 1 : steps)) {}

    void step() {
        for (int64_t i = 0; i < lines_each_ && line_ < end_; ++i, line_ += kLineBytes)
            prefetch_outer(line_);
    }

    // A step of ranges of one size, line by line in turns: 4 % of a product faster than range by
    // range.
    template <int count>
    static void step(LinesAhead (&ranges)[count]) {
        const LinesAhead& first = ranges[0];
        for (int64_t i = 0; i < first.lines_each_ && first.line_ < first.end_; ++i) {
            for (LinesAhead& range : ranges) {
                prefetch_outer(range.line_);
                range.line_ += kLineBytes;
            }
        }
    }

  private:
    const uint8_t* line_ = nullptr;
    const uint8_t* end_ = nullptr;
    int64_t lines_each_ = 0;
};

// What follows `count` panels of a task from `first` on, which are multiplied in `steps` steps: as
// many panels, or what there is of them. None where that is not worth it.
PENSTOCK_INLINE LinesAhead panels_ahead(const LinearTask& task, int64_t first, int64_t count,
                                        int64_t steps) {
    if (!worth_fetching(task))
        return {};
    const PanelPart& part = *task.part;
    const int64_t end = first + count, left = task.panel_end - end;
    if (left > 0) {
        const int64_t bytes = (left < count ? left : count) * part.panel_bytes;
        return {part.data + end * part.panel_bytes, bytes, steps};
    }
    const int64_t panels = task.next_panels < count ? task.next_panels : count;
    return {task.next, panels * task.next_panel_bytes, steps};
}

// Calls multiply(panel_begin, panel_end, row, rows, ahead) for all panels of a task and its rows
// from `row_begin` on. `beside`: how many panels go together; `block(left)`: how many of the rows
// that are left; `steps`: how often all rows call ahead.step() for so many panels.
//
// Where fetching ahead is worth it, all rows are multiplied with one panel while the next one
// comes; else a few rows stay near and take all panels.
template <class Block, class Multiply>
PENSTOCK_INLINE void multiply_each(const LinearTask& task, int64_t row_begin, int64_t steps,
                                   int64_t beside, const Block& block, const Multiply& multiply) {
    const bool fetching = row_begin == task.row_begin && worth_fetching(task);
    const int64_t at_once = fetching ? beside : task.panel_end - task.panel_begin;
    for (int64_t first = task.panel_begin; first < task.panel_end; first += at_once) {
        const int64_t end = first + at_once < task.panel_end ? first + at_once : task.panel_end;
        LinesAhead ahead = fetching ? panels_ahead(task, first, end - first, steps) : LinesAhead();
        for (int64_t row = row_begin; row < task.row_end;) {
            const int64_t rows = block(task.row_end - row);
            multiply(first, end, row, rows, ahead);
            row += rows;
        }
    }
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
