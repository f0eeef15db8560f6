#include "plan/segments.h"

#include <algorithm>

#include "plan/arena.h"

namespace penstock {
namespace {

constexpr int64_t row_unit = 16;

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

bool keeps_rows_apart(const PlanStep& step) {
    return step.kernels.row_wise() && !step.gathers &&
           std::all_of(step.tensors.begin(), step.tensors.end(), [](const PlanTensor& tensor) {
               return tensor.axis == Axis::tokens || tensor.buffer == PlanTensor::external;
           });
}

std::vector<Segment> runs_of(const std::vector<PlanStep>& steps) {
    std::vector<Segment> runs;
    const auto count = static_cast<int32_t>(steps.size());
    for (int32_t first = 0; first < count;) {
        int32_t last = first;
        while (last < count && keeps_rows_apart(steps[static_cast<size_t>(last)])) {
            ++last;
        }
        if (last - first >= 2) {
            runs.push_back({first, last, 0});
        }
        first = std::max(last, first + 1);
    }
    return runs;
}

// Places the buffers that only `segment` uses in the segment's slab.
void place_slab(const Recorder& recorder, int32_t output, int64_t rows, Segment& segment,
                std::vector<size_t>& offsets) {
    std::vector<Lifetime> lifetimes;
    std::vector<size_t> placed;
    const auto& buffers = recorder.buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
        const PlanBuffer& buffer = buffers[i];
        if (buffer.is_input || buffer.kept || static_cast<int32_t>(i) == output ||
            buffer.first_step < segment.first || buffer.last_step >= segment.last) {
            continue;
        }
        lifetimes.push_back(
            {buffer.first_step, buffer.last_step, buffer.row_bytes * static_cast<size_t>(rows)});
        placed.push_back(i);
    }
    const ArenaLayout layout = place(lifetimes);
    for (size_t i = 0; i < placed.size(); ++i) {
        offsets[placed[i]] = layout.offsets[i];
    }
    segment.slab_bytes = layout.bytes;
}

} // namespace

int64_t BlockCut::first(int64_t block) const {
    return std::min(tokens, ceil_div(tokens, row_unit) * block / blocks * row_unit);
}

BlockCut cut_rows(int64_t tokens, const RowBlocks& blocks) {
    const int64_t least = ceil_div(tokens, blocks.rows);
    const int64_t even = ceil_div(least, blocks.threads) * blocks.threads;
    return {tokens, std::min(even, ceil_div(tokens, row_unit))};
}

Segments find_segments(const Recorder& recorder, int32_t output, const RowBlocks& blocks) {
    Segments segments{{}, std::vector<size_t>(recorder.buffers().size(), Segments::shared)};
    if (blocks.rows == 0 || recorder.largest().tokens <= blocks.least()) {
        return segments;
    }
    segments.all = runs_of(recorder.steps());
    for (Segment& segment : segments.all) {
        place_slab(recorder, output, blocks.rows, segment, segments.slab_offsets);
    }
    return segments;
}

} // namespace penstock
