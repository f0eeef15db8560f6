// Attention over the paged cache. Included by the level files.
//
//   paged_attention  tensors:  0 q [T, H * D] float32; 1 query_starts [R + 1]; 2 context_lens [R];
//                              3 block_tables [R, max_blocks] (int32 each);
//                              4 keys [B, K, D, P]; 5 values [B, K, P, D] (both float16 or
//                              float32); 6 out [T, H * D] float32; 7 partials [n] float32 scratch
//                    integers: H, K, D, window (0: none)
//                    reals:    scale
//   bidirectional_attention  the same without partials: a token also sees the tokens after it, with
//                    a window w those at a distance below w
//   biased_attention  the same with 7 bias [H, 2 M + 1] float32: a key d positions after a token
//   (or
//                    -d before it) has bias[h, M + d] added to its score, d no farther than M
//
// P is a multiple of kLanes and divides 64 or is a multiple of it; D is any multiple of 8. Blocks
// of the table that hold no visible key are not looked up, slots without one do not reach a result.
// `partials` holds attention_partial_floats(...) floats; with fewer, steps are just not split.
//
// Arithmetic of one (token, query head), which nothing else in the step changes: spans of 256 keys
// aligned to absolute positions; in a span, tiles of 64 keys with a running softmax (base 2), its
// mass summed per vector lane; spans merged in order. A task computes a block of a chunk's tokens
// for the query heads of one KV head, all spans; or, in steps of few tasks, one token and one span,
// and phase 1 merges.
#pragma once

#include "cpu/attention_step.inl.h"
#include "cpu/attention_tile.inl.h"
#include "cpu/math.inl.h"
#include "cpu/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {
namespace attention {

constexpr float kLog2e = 1.44269504088896341f;

// The buffers of a task within the thread's workspace. Row = token of the block * G + query head.
struct Buffers {
    float *queries, *scores, *sums, *totals, *keys, *values, *lane_mass, *highest, *total_highest,
        *total_mass;
    size_t bytes;

    Buffers(void* memory, int64_t rows, int64_t dim) {
        const int64_t padded = round_up(dim, kLanes);
        float* next = static_cast<float*>(memory);
        const auto take = [&](int64_t floats) {
            float* start = next;
            next += round_up(floats, 16);
            return start;
        };
        queries = take(rows * dim);
        scores = take(rows * kTile);
        sums = take(rows * padded);
        totals = take(rows * padded);
        keys = take(dim * kTile);
        values = take(padded * kTile);
        lane_mass = take(rows * kLanes);
        highest = take(rows);
        total_highest = take(rows);
        total_mass = take(rows);
        bytes = static_cast<size_t>(next - static_cast<float*>(memory)) * sizeof(float);
    }
};

// Adds a span's result to a row's total. The first one is taken as it is.
PENSTOCK_INLINE void merge(const float* sums, float highest, float mass, int64_t padded,
                           float* total_sums, float& total_highest, float& total_mass, bool start) {
    const float top = start || highest > total_highest ? highest : total_highest;
    const float keep = start ? 0.0f : exp2_below(total_highest, top);
    const float add = start ? 1.0f : exp2_below(highest, top);
    for (int64_t i = 0; i < padded; i += kLanes) {
        F32 sum = load(sums + i);
        if (!start) {
            sum = fma(sum, broadcast(add), load(total_sums + i) * broadcast(keep));
        }
        store(total_sums + i, sum);
    }
    total_mass = start ? mass : total_mass * keep + mass * add;
    total_highest = top;
}

PENSTOCK_INLINE void write_out(const float* sums, float mass, int64_t dim, float* out) {
    const F32 inverse = broadcast(1.0f / mass);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        store_lanes(out + i, load(sums + i) * inverse, n);
    }
}

// One task's walk over its keys, for cache elements of one type.
template <class Element>
struct Walk {
    const Arguments& call;
    const Step& step;
    const Job& job;
    const Buffers& buffer;
    const int32_t* table;
    int64_t position; // of the block's first token
    int64_t padded;   // D in whole vectors
    int64_t rows;     // count * G
    bool direct;      // few rows: elements are converted as they are used
    bool biased;

    Walk(const Arguments& call, const Step& step, const Job& job, const Buffers& buffer)
        : call(call), step(step), job(job), buffer(buffer),
          table(call.tensor[3].row<int32_t>(job.row)),
          position(step.chunk_position(job.row) + job.first), padded(round_up(step.dim, kLanes)),
          rows(job.count * step.group), direct(rows <= 2 * kMaxRows && step.dim % kLanes == 0),
          biased(step.reach == Reach::both && call.tensor[7].data) {}

    // Visible keys of the block's token i within the 64 keys from `tile`.
    int visible_from(int64_t i, int64_t tile) const {
        return static_cast<int>(larger(0, step.first_visible(position + i) - tile));
    }
    int visible_to(int64_t i, int64_t tile) const {
        return static_cast<int>(smaller(kTile, step.end_visible(job.row, position + i) - tile));
    }

    const Element* key_block(int64_t key) const {
        const TensorView& keys = call.tensor[4];
        return keys.row<Element>(table[key / step.block_tokens]) + job.kv_head * keys.stride[1] +
               key % step.block_tokens;
    }
    const Element* value_row(int64_t key) const {
        const TensorView& values = call.tensor[5];
        return values.row<Element>(table[key / step.block_tokens]) +
               job.kv_head * values.stride[1] + key % step.block_tokens * values.stride[2];
    }

    void pack_queries() const {
        const F32 scale = broadcast(call.real[0] * kLog2e);
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t token = step.starts[job.row] + job.first + row / step.group;
            const int64_t head = job.kv_head * step.group + row % step.group;
            const float* from = call.tensor[0].row<float>(token) + head * step.dim;
            for (int64_t i = 0; i < step.dim; i += kLanes) {
                const int n = lanes_from(i, step.dim);
                store_lanes(buffer.queries + row * step.dim + i, load_lanes(from + i, n) * scale,
                            n);
            }
        }
    }

    // Keys to [vector of keys][D][lane], values to [vector of D][key][lane], for keys from
    // tile + begin to tile + end.
    void convert(int64_t tile, int begin, int end) const {
        const int64_t key_stride = call.tensor[4].stride[2];
        for (int v = begin / kLanes; v * kLanes < end; ++v) {
            const Element* from = key_block(tile + v * kLanes);
            float* to = buffer.keys + v * step.dim * kLanes;
            for (int64_t d = 0; d < step.dim; ++d) {
                store(to + d * kLanes, load_element(from + d * key_stride));
            }
        }
        for (int j = begin; j < end; ++j) {
            const Element* from = value_row(tile + j);
            float* to = buffer.values + j * kLanes;
            int64_t d = 0;
            for (; d + kLanes <= step.dim; d += kLanes) {
                store(to + d * kTile, load_element(from + d));
            }
            if (d < step.dim) {
                store(to + d * kTile, load_element(from + d, static_cast<int>(step.dim - d)));
            }
        }
    }

    // Addresses of the cache blocks that are read after the tile that begins at `tile`: of its
    // successor, or of the next KV head's first one.
    struct Pieces {
        const char* start[2 * kTile / kLanes];
        int count = 0;
    };
    Pieces pieces_after(int64_t tile) const {
        Pieces pieces;
        const int64_t seen = step.end_visible(job.row, position + job.count - 1);
        const int64_t unit = step.block_tokens;
        int64_t next = tile + kTile, head = 0;
        if (next >= seen) {
            if (job.kv_head + 1 == step.kv_heads)
                return pieces;
            next = step.first_visible(position) / kTile * kTile, head = 1;
        }
        const int64_t end = smaller(next + kTile, seen);
        const int64_t begin = larger(next, step.first_visible(position)) / unit * unit;
        const auto add = [&](const Element* start) {
            pieces.start[pieces.count++] = reinterpret_cast<const char*>(start);
        };
        for (int64_t key = begin; key < end; key += unit) {
            add(key_block(key) + head * call.tensor[4].stride[1]);
        }
        for (int64_t key = begin; key < end; key += unit) {
            add(value_row(key) + head * call.tensor[5].stride[1]);
        }
        return pieces;
    }

    // Scores of rows [row, row + count) with the tile's keys from `begin` to `end`.
    void score(int64_t tile, int64_t row, int count, int begin, int end, Ahead& ahead) const {
        const float* queries = buffer.queries + row * step.dim;
        const int first_vector = begin / kLanes, vectors = (end - 1) / kLanes + 1 - first_vector;
        float* to = buffer.scores + row * kTile + first_vector * kLanes;
        if (direct) {
            const Element* from[kTileVectors];
            for (int v = 0; v < vectors; ++v) {
                from[v] = key_block(tile + (first_vector + v) * kLanes);
            }
            multiply(count, queries, step.dim, from, vectors, call.tensor[4].stride[2], step.dim,
                     to, kTile, false, ahead);
            return;
        }
        Nothing nothing;
        const float* from[kTileVectors];
        for (int v = 0; v < vectors; ++v) {
            from[v] = buffer.keys + (first_vector + v) * step.dim * kLanes;
        }
        multiply(count, queries, step.dim, from, vectors, kLanes, step.dim, to, kTile, false,
                 nothing);
    }

    // Adds the weighted values of keys [begin, end) of the tile to rows [row, row + count).
    void add_values(int64_t tile, int64_t row, int count, int begin, int end, Ahead& ahead) const {
        constexpr int kMost = 1024 / kLanes;
        const int vectors = static_cast<int>(padded / kLanes);
        const float* weights = buffer.scores + row * kTile;
        float* to = buffer.sums + row * padded;
        if (!direct) {
            Nothing nothing;
            const float* from[kMost];
            for (int v = 0; v < vectors; ++v) {
                from[v] = buffer.values + (v * kTile + begin) * kLanes;
            }
            multiply(count, weights + begin, kTile, from, vectors, kLanes, end - begin, to, padded,
                     true, nothing);
            return;
        }
        while (begin < end) { // block by block
            const int64_t left = step.block_tokens - (tile + begin) % step.block_tokens;
            const int n = static_cast<int>(smaller(left, end - begin));
            const Element* from[kMost];
            from[0] = value_row(tile + begin);
            for (int v = 1; v < vectors; ++v)
                from[v] = from[v - 1] + kLanes;
            multiply(count, weights + begin, kTile, from, vectors, call.tensor[5].stride[2], n, to,
                     padded, true, ahead);
            begin += n;
        }
    }

    // Adds the bias of row i to its scores of the tile's keys from `begin` to `end`, in whole
    // vectors.
    void add_bias(int64_t tile, int64_t i, int begin, int end) const {
        const TensorView& bias = call.tensor[7];
        const float* of_head = bias.row<float>(job.kv_head * step.group + i % step.group);
        const int64_t most = bias.shape[1] / 2, own = position + i / step.group;
        const F32 log2e = broadcast(kLog2e);
        for (int v = begin / kLanes; v * kLanes < end; ++v) {
            const int64_t distance = tile + v * kLanes - own;
            const bool inside = distance >= -most && distance + kLanes - 1 <= most;
            float picked[kLanes];
            for (int64_t j = 0; !inside && j < kLanes; ++j)
                picked[j] = of_head[most + larger(-most, smaller(most, distance + j))];
            const F32 added = load(inside ? of_head + most + distance : picked);
            float* scores = buffer.scores + i * kTile + v * kLanes;
            store(scores, fma(added, log2e, load(scores)));
        }
    }

    // Rows [row, row + count) with one tile: scores, weights, values. The keys that all of these
    // rows see are added for all at once; a row's own further keys before and after those.
    void tile_rows(int64_t tile, int64_t row, int count, Ahead& ahead) const {
        const int64_t first_token = row / step.group, last_token = (row + count - 1) / step.group;
        const int begin = visible_from(first_token, tile), end = visible_to(last_token, tile);
        if (begin >= kTile || end <= 0)
            return; // seen by none of them
        score(tile, row, count, begin, end, ahead);
        for (int64_t i = row; i < row + count; ++i) {
            const int64_t token = i / step.group;
            const int from = visible_from(token, tile), to = visible_to(token, tile);
            if (from >= to)
                continue;
            if (biased)
                add_bias(tile, i, from, to);
            weigh(buffer.scores + i * kTile, from, to,
                  {buffer.highest + i, buffer.lane_mass + i * kLanes, buffer.sums + i * padded},
                  static_cast<int>(padded / kLanes));
        }
        const int shared_from = visible_from(last_token, tile);
        const int shared_to = larger(shared_from, visible_to(first_token, tile));
        own_values(tile, row, count, 0, shared_from, ahead);
        if (shared_from < shared_to) {
            add_values(tile, row, count, shared_from, shared_to, ahead);
        }
        own_values(tile, row, count, shared_to, kTile, ahead);
    }

    // Values of the keys within [low, high) of the tile that each row sees.
    void own_values(int64_t tile, int64_t row, int count, int64_t low, int64_t high,
                    Ahead& ahead) const {
        const int64_t end = row + count;
        while (row < end) {
            const int64_t token = row / step.group;
            const int64_t next = smaller(end, (token + 1) * step.group);
            const int from = static_cast<int>(larger(low, visible_from(token, tile)));
            const int to = static_cast<int>(smaller(high, visible_to(token, tile)));
            if (from < to)
                add_values(tile, row, static_cast<int>(next - row), from, to, ahead);
            row = next;
        }
    }

    void reset() const {
        for (int64_t i = 0; i < rows; ++i)
            buffer.highest[i] = -__builtin_inff();
        for (int64_t i = 0; i < rows * kLanes; ++i)
            buffer.lane_mass[i] = 0.0f;
        for (int64_t i = 0; i < rows * padded; ++i)
            buffer.sums[i] = 0.0f;
    }

    // One span for all rows, into sums, lane_mass and highest.
    void span(int64_t index) const {
        reset();
        const int64_t seen = step.end_visible(job.row, position + job.count - 1);
        const int64_t begin = larger(index * kSpan, step.first_visible(position) / kTile * kTile);
        const int64_t end = smaller((index + 1) * kSpan, seen);
        const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
        for (int64_t tile = begin; tile < end; tile += kTile) {
            const Pieces next = direct ? pieces_after(tile) : Pieces{};
            Ahead ahead{next.start, next.start + next.count,
                        step.block_tokens * step.dim * static_cast<int64_t>(sizeof(Element)), 0};
            if (!direct)
                convert(tile, visible_from(0, tile), visible_to(job.count - 1, tile));
            for (int64_t b = 0, row = 0; b < blocks; ++b) {
                const int64_t end_row = rows * (b + 1) / blocks; // as even as possible
                tile_rows(tile, row, static_cast<int>(end_row - row), ahead);
                row = end_row;
            }
        }
    }

    bool sees(int64_t row, int64_t index) const {
        const int64_t own = position + row / step.group;
        return step.end_visible(job.row, own) > index * kSpan &&
               step.first_visible(own) < (index + 1) * kSpan;
    }

    void run_all() const {
        pack_queries();
        for (int64_t i = 0; i < rows; ++i)
            buffer.total_mass[i] = -1.0f; // no span yet
        for (int64_t index = job.span; index < job.span_end; ++index) {
            span(index);
            for (int64_t i = 0; i < rows; ++i) {
                if (!sees(i, index))
                    continue;
                merge(buffer.sums + i * padded, buffer.highest[i],
                      reduce_add(load(buffer.lane_mass + i * kLanes)), padded,
                      buffer.totals + i * padded, buffer.total_highest[i], buffer.total_mass[i],
                      buffer.total_mass[i] == -1.0f);
            }
        }
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t token = step.starts[job.row] + job.first + i / step.group;
            const int64_t head = job.kv_head * step.group + i % step.group;
            write_out(buffer.totals + i * padded, buffer.total_mass[i], step.dim,
                      call.tensor[6].row<float>(token) + head * step.dim);
        }
    }

    void run_span() const {
        pack_queries();
        span(job.span);
        for (int64_t i = 0; i < rows; ++i) {
            float* to = partial(call, step, step.starts[job.row] + job.first,
                                job.span - step.first_span(position), job.kv_head * step.group + i);
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
        return call.tensor[7].row<float>(0) + place * attention_partial_stride(step.dim);
    }
};

// Phase 1 of a split step: one token and KV head.
void merge_spans(const Arguments& call, const Step& step, int64_t task, Workspace& workspace) {
    const int64_t token = step.starts[0] + task / step.kv_heads;
    int64_t row = 0;
    while (step.starts[row + 1] <= token)
        ++row;
    const int64_t spans = step.spans(step.chunk_position(row) + token - step.starts[row]);
    const int64_t padded = round_up(step.dim, kLanes);
    float* total = static_cast<float*>(workspace.data);
    for (int64_t g = 0; g < step.group; ++g) {
        const int64_t head = task % step.kv_heads * step.group + g;
        float highest = 0.0f, mass = 0.0f;
        for (int64_t s = 0; s < spans; ++s) {
            const float* from = Walk<float>::partial(call, step, token, s, head);
            merge(from, from[padded], from[padded + 1], padded, total, highest, mass, s == 0);
        }
        write_out(total, mass, step.dim, call.tensor[6].row<float>(token) + head * step.dim);
    }
}

template <Reach reach>
int phases(const Arguments& call) {
    return Step(call, reach).split ? 2 : 1;
}

template <Reach reach>
int64_t tasks(const Arguments& call, int phase) {
    const Step step(call, reach);
    if (phase == 1)
        return step.tokens * step.kv_heads;
    int64_t total = 0;
    for_each_row(step, [&](int64_t, int64_t tasks) {
        total += tasks;
        return false;
    });
    return total;
}

template <Reach reach>
void run(const Arguments& call, int phase, int64_t task, Workspace& workspace) {
    const Step step(call, reach);
    if (phase == 1)
        return merge_spans(call, step, task, workspace);
    const Job job = find_job(step, task);
    const Buffers buffer(workspace.data, job.count * step.group, step.dim);
    const auto walk = [&](auto element) {
        const Walk<decltype(element)> walk(call, step, job, buffer);
        step.split ? walk.run_span() : walk.run_all();
    };
    call.tensor[4].dtype == DType::f16 ? walk(uint16_t{}) : walk(float{});
}

size_t workspace_bytes(const Arguments& call) {
    const int64_t group = call.integer[0] / call.integer[1], dim = call.integer[2];
    return Buffers(nullptr, group << widest_shift(group, dim), dim).bytes;
}

} // namespace attention

constexpr Kernel kAttentionKernels[] = {
    {"paged_attention", attention::phases<attention::Reach::back>,
     attention::tasks<attention::Reach::back>, attention::run<attention::Reach::back>,
     attention::workspace_bytes},
    {"bidirectional_attention", attention::phases<attention::Reach::both>,
     attention::tasks<attention::Reach::both>, attention::run<attention::Reach::both>,
     attention::workspace_bytes},
    {"biased_attention", attention::phases<attention::Reach::both>,
     attention::tasks<attention::Reach::both>, attention::run<attention::Reach::both>,
     attention::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
