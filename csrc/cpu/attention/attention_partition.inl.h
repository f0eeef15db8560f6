// Divides an attention call into tasks. Included by attention.inl.h, which documents the arguments.
// The division changes no bit of any result.
#pragma once

#include "cpu/attention/attention_split.h"
#include "cpu/dot/bf16_pairs.h"
#include "cpu/simd/half.h"
#include "cpu/sizes.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

constexpr int64_t kSpan = kAttentionSpan;
// Maximum rows of a task, and maximum elements of these rows in one operand: a tile is converted
// once for all rows, and the task's own data stays in the L2 cache.
constexpr int64_t kBlockRows = kLanes == 16 ? 256 : 128;
constexpr int64_t kBlockElements = kBlockRows * 128;

PENSTOCK_INLINE int64_t round_up(int64_t x, int64_t unit) {
    return ceil_div(x, unit) * unit;
}
PENSTOCK_INLINE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
PENSTOCK_INLINE int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Returns log2 of the query tokens of a task, unless the step is small.
PENSTOCK_INLINE int widest_shift(int64_t group, int64_t dim) {
    const int64_t rows = smaller(kBlockRows, larger(kBlockElements / dim, 1));
    int shift = 0;
    while ((group << (shift + 1)) <= rows)
        ++shift;
    return shift;
}

// The keys that a token sees: only up to its own position, also all later keys, or those before the
// end that the tensor `visible` gives for it.
enum class Reach : uint8_t { back, both, given };

// The heads of a call: query heads in groups, each with a KV head; or query heads that all share
// one KV head, whose keys are latents and rotated parts, and whose values are latents.
enum class Form : uint8_t { grouped, latent };

constexpr int kFurther = 8; // index of the tensor of some kernels: sinks or `visible`

// The shape of a step and its division into tasks.
struct Step {
    int64_t heads, kv_heads, group, window, block_size, rows, tokens;
    int64_t dim, value_dim; // elements of a key, and of a value
    int64_t cached_heads;   // KV heads of the cache. In latent attention, where this is 1, kv_heads
                            // counts the parts into which the query heads are divided
    const int32_t *starts, *contexts;
    const int32_t* visible; // null unless the reach is `given`
    int64_t max_spans;      // maximum over the tokens
    int shift;              // a task takes 1 << shift tokens
    bool split;             // each task is one span of one token
    Reach reach;

    Step(const Arguments& call, Reach reach, Form form = Form::grouped) : reach(reach) {
        heads = call.integer[0];
        if (form == Form::latent) {
            kv_heads = cached_heads = 1, window = 0;
            value_dim = call.integer[1], dim = value_dim + call.integer[2];
        } else {
            kv_heads = cached_heads = call.integer[1], window = call.integer[3];
            value_dim = dim = call.integer[2];
        }
        block_size = call.tensor[4].shape[3];
        rows = call.tensor[2].shape[0];
        starts = call.tensor[1].row<int32_t>(0);
        contexts = call.tensor[2].row<int32_t>(0);
        visible = reach == Reach::given ? call.tensor[kFurther].row<int32_t>(0) : nullptr;
        tokens = starts[rows] - starts[0];
        while (form == Form::latent && tokens * kv_heads < kAttentionSplitBelow &&
               kv_heads < latent_parts(heads))
            kv_heads *= 2;
        group = heads / kv_heads;
        shift = widest_shift(group, dim);
        while (shift > 0 && (tokens >> shift) * kv_heads < kAttentionSplitBelow)
            --shift;
        split = false, max_spans = 0;
        if (reach == Reach::both)
            return;
        if (tokens * kv_heads >= kAttentionSplitBelow || !call.tensor[7].data)
            return;
        for (int64_t r = 0; r < rows; ++r) {
            max_spans = larger(max_spans, (contexts[r] + kSpan - 1) / kSpan);
        }
        const int64_t needed = tokens * max_spans * heads * attention_partial_stride(value_dim);
        split = max_spans > 1 && needed <= call.tensor[7].shape[0];
    }

    int64_t chunk_tokens(int64_t row) const { return starts[row + 1] - starts[row]; }
    // Returns the position of the first token of the row's chunk.
    int64_t chunk_position(int64_t row) const { return contexts[row] - chunk_tokens(row); }
    // Returns the first key that a token of the row sees. Tokens with the same visible end see each
    // other, also if the window is narrower.
    int64_t first_visible(int64_t row, int64_t position) const {
        if (window < 0)
            return position / -window * -window;
        if (window == 0)
            return 0;
        const int64_t first = larger(0, position - window + 1);
        if (reach != Reach::given || first <= chunk_position(row))
            return first;
        const int32_t* ends = visible + starts[row] - chunk_position(row);
        int64_t low = chunk_position(row), high = first;
        if (ends[first - 1] < ends[position])
            return first;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (ends[middle] < ends[position]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
    // Returns the end of the keys that a token of the row sees.
    int64_t end_visible(int64_t row, int64_t position) const {
        if (reach == Reach::back)
            return position + 1;
        if (reach == Reach::given)
            return visible[starts[row] + position - chunk_position(row)];
        return window > 0 ? smaller(contexts[row], position + window) : contexts[row];
    }
    int64_t first_span(int64_t row, int64_t position) const {
        return first_visible(row, position) / kSpan;
    }
    int64_t end_span(int64_t row, int64_t position) const {
        return (end_visible(row, position) - 1) / kSpan + 1;
    }
    int64_t spans(int64_t row, int64_t position) const {
        return end_span(row, position) - first_span(row, position);
    }
};

// The work of one task: tokens [first, first + count) of a row's chunk, for one KV head, over spans
// [span, span_end).
struct Job {
    int64_t row, first, count, kv_head, span, span_end;
};

// Visits rows in descending order, since the scheduler puts prompts last, and blocks of a row in
// descending order, since the last block sees the most keys: long tasks come first. Calls
// `visit(row, tasks)` until it returns true.
template <class Visit>
PENSTOCK_INLINE void for_each_row(const Step& step, Visit visit) {
    for (int64_t row = step.rows - 1; row >= 0; --row) {
        const int64_t count = step.chunk_tokens(row), base = step.chunk_position(row);
        int64_t units = 0;
        if (step.split) {
            for (int64_t i = 0; i < count; ++i)
                units += step.spans(row, base + i);
        } else {
            units = (count + (int64_t{1} << step.shift) - 1) >> step.shift;
        }
        if (visit(row, units * step.kv_heads))
            return;
    }
}

PENSTOCK_INLINE Job job_within(const Step& step, int64_t row, int64_t task) {
    const int64_t count = step.chunk_tokens(row), base = step.chunk_position(row);
    Job job{row, 0, 1, remainder(task, step.kv_heads), 0, 0};
    int64_t unit = quotient(task, step.kv_heads);
    if (step.split) {
        while (unit >= step.spans(row, base + job.first))
            unit -= step.spans(row, base + job.first++);
        job.span = step.first_span(row, base + job.first) + unit;
        job.span_end = job.span + 1;
        return job;
    }
    const int64_t blocks = (count + (int64_t{1} << step.shift) - 1) >> step.shift;
    job.first = (blocks - 1 - unit) << step.shift;
    job.count = smaller(count - job.first, int64_t{1} << step.shift);
    job.span = step.first_span(row, base + job.first);
    job.span_end = step.end_span(row, base + job.first + job.count - 1);
    return job;
}

PENSTOCK_INLINE Job find_job(const Step& step, int64_t task) {
    Job job{};
    for_each_row(step, [&](int64_t row, int64_t tasks) {
        if (task >= tasks) {
            task -= tasks;
            return false;
        }
        job = job_within(step, row, task);
        return true;
    });
    return job;
}

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
