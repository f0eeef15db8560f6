// Attention over the paged KV cache. Included by the ISA files.
//
//   paged_attention  tensors:  0 q [T, H * D] float32; 1 query_starts [R + 1]; 2 context_lens [R];
//                              3 block_tables [R, max_blocks] (int32 each);
//                              4 keys [B, K, D, P]; 5 values [B, K, P, D] (both float16 or
//                              float32); 6 out [T, H * D] float32; 7 partials [n] float32 scratch
//                    integers: H, K, D, window (0: none; -c: chunks of c keys)
//                    reals:    scale, cap (0: none; c: a score s becomes c * tanh(s / c))
//   sink_attention   as paged_attention, with 8 sinks [H] float32: exp(sinks[h]) is added to
//                    the softmax sum
//   visible_attention  as paged_attention, with 8 visible [T] int32: the end of the keys that each
//                    token sees, from its own position + 1 to its context, never descending in a
//                    chunk. Tokens with the same end also see each other outside the window
//   latent_attention as paged_attention, with q [T, H * (C + S)], keys [B, 1, C + S, P], values
//                    [B, 1, P, C], out [T, H * C]: all query heads share one KV head
//                    integers: H, C, S
//                    reals:    scale
//   int8_paged_attention, int8_sink_attention, int8_visible_attention  as those without int8, with
//                    int8 keys [B, K, D + 4, P] and values [B, K, P, D + 4]: for each KV block and
//                    head [D / 2, P, 2] keys, or [P / 2, D, 2] values, and P float32 scales
//   bidirectional_attention  as paged_attention without partials and cap: a token also sees the
//   tokens
//                    after it; with a window w, those at a distance below w
//   rounded_attention  as bidirectional_attention, with the arithmetic of shared heads for any
//   heads biased_attention  as bidirectional_attention, with 7 bias [H, 2 M + 1] float32: bias[h, M
//   + d]
//                    is added to the score of a key d positions after the token (-d before it),
//                    with d clamped to -M..M
//
// P is a multiple of kLanes and divides 64 or is a multiple of it; D is any multiple of 8. Block
// table entries without a visible key are not read; slots without a visible key do not affect a
// result. `partials` holds attention_partial_floats(...) floats; if it holds fewer, steps are not
// split.
//
// The arithmetic of one (token, query head) does not depend on the rest of the step. Keys are
// divided into spans of 256, aligned to absolute positions. Within a span, tiles of 64 keys pass
// through an online softmax (base 2), whose sum is kept per vector lane. Spans are merged in order.
// All is computed in float32, except over an 8-bit cache (attention_int8.inl.h), and over a float16
// cache with shared heads (H > K) on ISAs with bf16 products: there the operands are rounded to
// bf16, and one step of a product takes several keys; see attention_bf16.inl.h and
// attention_amx.inl.h. Keys that a row does not see do not change its sums, even if they are NaN or
// in one step with keys that the row sees.
//
// A task computes a block of a chunk's tokens for the query heads of one KV head, over all spans.
// In steps of few tasks, a task computes one token over one span, and phase 1 merges the spans.
#pragma once

#include "cpu/attention/attention_amx.inl.h"
#include "cpu/attention/attention_bf16.inl.h"
#include "cpu/attention/attention_f32.inl.h"
#include "cpu/attention/attention_int8.inl.h"
#include "cpu/attention/attention_partition.inl.h"
#include "cpu/attention/attention_rows.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

// Arithmetic for a float16 cache with shared KV heads. Unshared heads use float32 on every ISA:
// converting keys and values to pairs for a single row takes longer than the products save, so that
// decoding would become slower.
#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)
using SharedHalves = AmxNumerics;
#elif defined(PENSTOCK_BF16_PAIRS)
using SharedHalves = Bf16Numerics;
#else
using SharedHalves = F32Numerics<uint16_t>;
#endif

// Multiplies a row's accumulated sums by `keep` and adds one span's sums times `add`. The first
// span (`start`) is stored as it is.
PENSTOCK_INLINE void add_span(const float* sums, int64_t padded, float* total, float keep,
                              float add, bool start) {
    for (int64_t i = 0; i < padded; i += kLanes) {
        F32 sum = load(sums + i);
        if (!start)
            sum = fma(sum, broadcast(add), load(total + i) * broadcast(keep));
        store(total + i, sum);
    }
}

// Merges a span's result into a row's total. `start`: the span is the row's first.
PENSTOCK_INLINE void merge(const float* sums, float highest, float mass, int64_t padded,
                           float* total_sums, float& total_highest, float& total_mass, bool start) {
    const float top = start || highest > total_highest ? highest : total_highest;
    const float keep = start ? 0.0f : exp2_below(total_highest, top);
    const float add = start ? 1.0f : exp2_below(highest, top);
    add_span(sums, padded, total_sums, keep, add, start);
    total_mass = start ? mass : total_mass * keep + mass * add;
    total_highest = top;
}

// Returns the factor that turns a row's sums, weighted by 2^(score - highest), into its result. A
// sink adds to the softmax sum but has no value.
PENSTOCK_INLINE float share_of_sums(const Arguments& call, const Step& step, int64_t head,
                                    float highest, float mass) {
    const TensorView& sinks = call.tensor[kFurther];
    if (step.reach != Reach::back || !sinks.data)
        return 1.0f / mass;
    const float sink = sinks.row<float>(0)[head] * kLog2e;
    const float top = sink > highest ? sink : highest;
    const float keep = exp2_below(highest, top);
    return keep / (mass * keep + exp2_below(sink, top));
}

PENSTOCK_INLINE void write_out(const float* sums, float share, int64_t dim, float* out) {
    const F32 inverse = broadcast(share);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        store_lanes(out + i, load(sums + i) * inverse, n);
    }
}

// Computes one task: all of its spans of keys, in order.
template <class Numerics>
struct Walk {
    using Cached = typename Numerics::Cached;
    const Arguments& call;
    const Step& step;
    const Job& job;
    const Buffers<Numerics> buffer;
    const Task<Cached> task;
    typename Numerics::Rows tiles;
    const int64_t position, padded, rows; // of `task`

    Walk(const Arguments& call, const Step& step, const Job& job, void* memory)
        : call(call), step(step), job(job),
          buffer(memory, job.count * step.group, step.dim, step.value_dim), task(call, step, job),
          tiles{task, step, buffer}, position(task.position), padded(task.padded), rows(task.rows) {
    }

    void reset() const {
        for (int64_t i = 0; i < rows; ++i)
            buffer.highest[i] = -__builtin_inff();
        for (int64_t i = 0; i < rows * kLanes; ++i)
            buffer.lane_mass[i] = 0.0f;
        for (int64_t i = 0; i < rows * padded; ++i)
            buffer.sums[i] = 0.0f;
    }

    // Computes one span for all rows, into `sums`, `lane_mass` and `highest`.
    void span(int64_t index) {
        reset();
        const int64_t seen = step.end_visible(job.row, position + job.count - 1);
        const int64_t begin =
            larger(index * kSpan, step.first_visible(job.row, position) / kTile * kTile);
        const int64_t end = smaller((index + 1) * kSpan, seen);
        for (int64_t tile = begin; tile < end; tile += kTile) {
            const auto next =
                task.prefetches ? task.pieces_after(tile) : typename Task<Cached>::Pieces{};
            Prefetcher prefetcher{next.start, next.start + next.count, task.piece_bytes(), 0};
            tiles.add(tile, prefetcher);
        }
    }

    bool sees(int64_t row, int64_t index) const {
        const int64_t own = position + quotient(row, step.group);
        return step.end_visible(job.row, own) > index * kSpan &&
               step.first_visible(job.row, own) < (index + 1) * kSpan;
    }

    void run_all() {
        pack_queries(task, buffer);
        const bool one_span = job.span + 1 == job.span_end;
        if (one_span) {
            span(job.span);
            for (int64_t i = 0; i < rows; ++i)
                buffer.total_mass[i] = reduce_add(load(buffer.lane_mass + i * kLanes));
        } else {
            merge_all();
        }
        const float* sums = one_span ? buffer.sums : buffer.totals;
        const float* mass = buffer.total_mass;
        const float* highest = one_span ? buffer.highest : buffer.total_highest;
        for (int64_t token = 0; token < job.count; ++token) {
            float* out = task.heads_of(call.tensor[6], token, step.value_dim);
            for (int64_t g = 0; g < step.group; ++g, sums += padded, out += step.value_dim) {
                const int64_t head = job.kv_head * step.group + g;
                const float share = share_of_sums(call, step, head, *highest++, *mass++);
                write_out(sums, share, step.value_dim, out);
            }
        }
    }

    void merge_all() {
        for (int64_t i = 0; i < rows; ++i)
            buffer.total_mass[i] = -1.0f; // no span yet
        for (int64_t index = job.span; index < job.span_end; ++index) {
            span(index);
            for (int64_t row = 0; row < rows; row += kMerged)
                merge_rows(row, static_cast<int>(smaller(kMerged, rows - row)), index);
        }
    }

    // Merges a span into the totals of up to kMerged rows, whose scales and sums are computed
    // together.
    static constexpr int kMerged = 8;
    void merge_rows(int64_t row, int count, int64_t index) const {
        F32 lanes[kMerged];
        for (int r = 0; r < kMerged; ++r)
            lanes[r] = r < count ? load(buffer.lane_mass + (row + r) * kLanes) : broadcast(0.0f);
        const F32 mass = reduce_add_each(lanes), highest = load(buffer.highest + row);
        const F32 total_mass = load(buffer.total_mass + row);
        const F32 total_highest = load(buffer.total_highest + row);
        const Mask start = equal(total_mass, broadcast(-1.0f));
        const F32 top = select(start, highest, max(highest, total_highest));
        const F32 keep = select(start, broadcast(0.0f), exp2_below(total_highest, top));
        const F32 add = select(start, broadcast(1.0f), exp2_below(highest, top));
        float tops[kLanes], keeps[kLanes], adds[kLanes], masses[kLanes];
        store(tops, top), store(keeps, keep), store(adds, add);
        store(masses, select(start, mass, total_mass * keep + mass * add));
        for (int r = 0; r < count; ++r) {
            if (!sees(row + r, index))
                continue;
            add_span(buffer.sums + (row + r) * padded, padded, buffer.totals + (row + r) * padded,
                     keeps[r], adds[r], (bits(start) >> r & 1U) != 0);
            buffer.total_highest[row + r] = tops[r];
            buffer.total_mass[row + r] = masses[r];
        }
    }

    void run_span() {
        pack_queries(task, buffer);
        span(job.span);
        for (int64_t i = 0; i < rows; ++i) {
            float* to = partial(call, step, step.starts[job.row] + job.first,
                                job.span - step.first_span(job.row, position),
                                job.kv_head * step.group + i);
            for (int64_t d = 0; d < padded; d += kLanes) {
                store(to + d, load(buffer.sums + i * padded + d));
            }
            to[padded] = buffer.highest[i];
            to[padded + 1] = reduce_add(load(buffer.lane_mass + i * kLanes));
        }
    }

    static float* partial(const Arguments& call, const Step& step, int64_t token, int64_t index,
                          int64_t head) {
        const int64_t place =
            ((token - step.starts[0]) * step.max_spans + index) * step.heads + head;
        return call.tensor[7].row<float>(0) + place * attention_partial_stride(step.value_dim);
    }
};

// Phase 1 of a split step: merges the spans of one token and KV head.
void merge_spans(const Arguments& call, const Step& step, int64_t task, Workspace& workspace) {
    const int64_t token = step.starts[0] + quotient(task, step.kv_heads);
    int64_t row = 0;
    while (step.starts[row + 1] <= token)
        ++row;
    const int64_t spans = step.spans(row, step.chunk_position(row) + token - step.starts[row]);
    const int64_t padded = round_up(step.value_dim, kLanes);
    float* total = static_cast<float*>(workspace.data);
    for (int64_t g = 0; g < step.group; ++g) {
        const int64_t head = remainder(task, step.kv_heads) * step.group + g;
        float highest = 0.0f, mass = 0.0f;
        for (int64_t s = 0; s < spans; ++s) {
            const float* from = Walk<F32Numerics<float>>::partial(call, step, token, s, head);
            merge(from, from[padded], from[padded + 1], padded, total, highest, mass, s == 0);
        }
        write_out(total, share_of_sums(call, step, head, highest, mass), step.value_dim,
                  call.tensor[6].row<float>(token) + head * step.value_dim);
    }
}

// Runs a task of phase 0. Not inlined: all kernels share this code.
template <class Numerics>
[[gnu::noinline]] void run_job(const Arguments& call, const Step& step, const Job& job,
                               Workspace& workspace) {
    Walk<Numerics> walk(call, step, job, workspace.data);
    step.split ? walk.run_span() : walk.run_all();
}

// The kernels of one reach and form. `rounded`: whether also unshared heads over a float16 cache
// have the arithmetic of shared heads.
template <Reach reach, Form form = Form::grouped, bool rounded = false>
struct Kernels {
    static int phases(const Arguments& call) { return Step(call, reach, form).split ? 2 : 1; }

    static int64_t tasks(const Arguments& call, int phase) {
        const Step step(call, reach, form);
        if (phase == 1)
            return step.tokens * step.kv_heads;
        int64_t total = 0;
        for_each_row(step, [&](int64_t, int64_t tasks) {
            total += tasks;
            return false;
        });
        return total;
    }

    static void run(const Arguments& call, int phase, int64_t task, Workspace& workspace) {
        const Step step(call, reach, form);
        if (phase == 1)
            return merge_spans(call, step, task, workspace);
        const Job job = find_job(step, task);
        if (call.tensor[4].dtype == DType::i8)
            return run_job<Int8Numerics>(call, step, job, workspace);
        if (call.tensor[4].dtype != DType::f16)
            return run_job<F32Numerics<float>>(call, step, job, workspace);
        step.group > 1 || rounded ? run_job<SharedHalves>(call, step, job, workspace)
                                  : run_job<F32Numerics<uint16_t>>(call, step, job, workspace);
    }

    static size_t workspace_bytes(const Arguments& call) {
        int64_t group = call.integer[0], dim = call.integer[2], value_dim = dim;
        if (form == Form::latent) {
            value_dim = call.integer[1], dim += value_dim;
        } else {
            group /= call.integer[1];
        }
        const int64_t rows = group << widest_shift(group, dim);
        if (call.tensor[4].dtype == DType::i8)
            return Buffers<Int8Numerics>(nullptr, rows, dim, value_dim).bytes;
        const size_t floats = Buffers<F32Numerics<float>>(nullptr, rows, dim, value_dim).bytes;
        const size_t halves = Buffers<SharedHalves>(nullptr, rows, dim, value_dim).bytes;
        return floats > halves ? floats : halves;
    }

    static constexpr Kernel named(const char* name) {
        return {name, phases, tasks, run, workspace_bytes};
    }
};

} // namespace attention

constexpr Kernel kAttentionKernels[] = {
    attention::Kernels<attention::Reach::back>::named("paged_attention"),
    attention::Kernels<attention::Reach::back>::named("sink_attention"),
    attention::Kernels<attention::Reach::given>::named("visible_attention"),
    attention::Kernels<attention::Reach::both>::named("bidirectional_attention"),
    attention::Kernels<attention::Reach::both, attention::Form::grouped, true>::named(
        "rounded_attention"),
    attention::Kernels<attention::Reach::both>::named("biased_attention"),
    attention::Kernels<attention::Reach::back, attention::Form::latent>::named("latent_attention"),
    attention::Kernels<attention::Reach::back>::named("int8_paged_attention"),
    attention::Kernels<attention::Reach::back>::named("int8_sink_attention"),
    attention::Kernels<attention::Reach::given>::named("int8_visible_attention"),
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
