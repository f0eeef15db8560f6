// Attention of the rows of a task over one tile of keys: scores, weights, values. Included by
// attention.inl.h.
//
// Numerics selects the arithmetic (attention_f32.inl.h, attention_bf16.inl.h,
// attention_int8.inl.h):
//   Cached                      element type of the cache
//   Packed                      element type of queries, weights and converted tiles
//   Rows                        the implementation: TileRows, AmxRows or Int8Rows
//   kIntegers                   whether products are summed in integers, with scales
//   kStep                       k per step of a product: 1, or 2 for pairs
//   kScoredRows                 rows whose scores and weights are kept at a time
//   kDepthUnit                  keys are padded to this with zeros, in queries and in tiles
//   CacheProducts               Products (attention_tile.inl.h) that read the cache
//   TileProducts                Products that read a converted tile
//   pack(to, a, n)              stores n lanes of a query
//   convert(to, from, stride, n)  converts a step of a tile: kStep vectors of n lanes, which are
//                               `stride` apart
//   weigh(Scored<Packed>)       turns scores into weights
#pragma once

#include "cpu/attention/attention_task.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

// The buffers of one task. Row = (token within the block) * G + query head.
template <class Numerics>
struct Buffers {
    using Packed = typename Numerics::Packed;
    float *sums, *totals; // [rows][value in whole vectors]: of the current span; of all spans
    float* lane_mass;     // [rows][kLanes]
    float *highest, *total_highest, *total_mass; // [rows], readable for one vector more
    Packed* queries;                             // [rows][key in whole units]
    float* scores;                               // [kScoredRows][kTile]: of the current rows
    Packed* weights;                             // [kScoredRows][kTile]
    Packed* keys;                                // [vector of keys][step of a key][kStep * kLanes]
    Packed* values; // [vector of a value][step of keys][kStep * kLanes]
    // Only with integers: scales of queries [rows] and of weights [kScoredRows]; scores or values
    // before they are scaled, [kScoredRows][the larger of kTile and a value in whole vectors].
    float *query_scales = nullptr, *weight_scales = nullptr;
    int32_t* products = nullptr;
    size_t bytes;

    // `dim`, `value_dim`: elements of a key, and of a value.
    Buffers(void* memory, int64_t rows, int64_t dim, int64_t value_dim) {
        const int64_t padded = round_up(value_dim, kLanes);
        const int64_t depth = round_up(dim, Numerics::kDepthUnit);
        char* next = static_cast<char*>(memory);
        const auto take = [&]<class T>(T*& start, int64_t count) {
            start = reinterpret_cast<T*>(next);
            next += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        };
        take(sums, rows * padded);
        take(totals, rows * padded);
        take(lane_mass, rows * kLanes);
        take(highest, rows + kLanes);
        take(total_highest, rows + kLanes);
        take(total_mass, rows + kLanes);
        take(queries, rows * depth + kLanes);
        take(scores, Numerics::kScoredRows * kTile);
        if constexpr (Numerics::kStep == 1) {
            weights = scores;
        } else {
            take(weights, Numerics::kScoredRows * kTile);
        }
        take(values, padded * kTile);
        if constexpr (Numerics::kIntegers) {
            keys = nullptr; // keys are read from the cache
            take(query_scales, rows);
            take(weight_scales, Numerics::kScoredRows);
            take(products, Numerics::kScoredRows * larger(kTile, padded));
        } else {
            take(keys, depth * kTile);
        }
        bytes = static_cast<size_t>(next - static_cast<char*>(memory));
    }
};

// Writes the scaled queries of all rows, with zeros past D.
template <class Numerics>
void pack_queries(const Task<typename Numerics::Cached>& task, const Buffers<Numerics>& buffer) {
    const int64_t dim = task.step.dim, depth = round_up(dim, Numerics::kDepthUnit);
    auto* to = buffer.queries;
    for (int64_t token = 0; token < task.job.count; ++token) {
        const float* from = task.heads_of(task.call.tensor[0], token, dim);
        for (int64_t g = 0; g < task.step.group; ++g, from += dim, to += depth) {
            for (int64_t i = 0; i < dim; i += kLanes) {
                const int n = lanes_from(i, dim);
                Numerics::pack(to + i, load_lanes(from + i, n) * task.query_scale(), n);
            }
            if (depth > dim)
                std::memset(to + dim, 0, static_cast<size_t>(depth - dim) * sizeof *to);
        }
    }
}

// Turns the scores of rows [row, row + count) into weights. Both are stored from index `place` on;
// `count` is at most kMaxRows. `weigh(scored)` computes the weights.
template <class Numerics, class Weigh>
void weigh_rows(const Task<typename Numerics::Cached>& task, const Buffers<Numerics>& buffer,
                int64_t tile, int64_t row, int count, int64_t place, const Weigh& weigh) {
    using Packed = typename Numerics::Packed;
    const int64_t group = task.step.group;
    Scored<Packed> scored{count,
                          {},
                          {},
                          buffer.scores + place * kTile,
                          buffer.weights + place * kTile,
                          buffer.highest + row,
                          buffer.lane_mass + row * kLanes,
                          buffer.sums + row * task.padded,
                          static_cast<int>(task.padded / kLanes)};
    int64_t token = quotient(row, group), end = (token + 1) * group;
    for (int r = 0; r < count; ++r) {
        if (row + r == end)
            ++token, end += group;
        scored.from[r] = task.visible_from(token, tile);
        scored.to[r] = task.visible_to(token, tile);
        if (scored.from[r] >= scored.to[r])
            continue;
        if (task.cap > 0.0f)
            task.cap_scores(scored.from[r], scored.to[r], scored.scores + r * kTile);
        if (task.biased)
            task.add_bias(tile, row + r, scored.from[r], scored.to[r], scored.scores + r * kTile);
    }
    weigh(scored);
}

template <class Numerics>
struct TileRows {
    using Cached = typename Numerics::Cached;
    using Packed = typename Numerics::Packed;
    static constexpr int kStep = Numerics::kStep;
    const Task<Cached>& task;
    const Step& step;
    const Buffers<Numerics>& buffer;
    int64_t first = 0; // first row of the block that is being computed

    // Computes all rows with one tile of keys and prefetches the next tile meanwhile: with every
    // load if the cache is read in place, else some lines before each block of rows.
    void add(int64_t tile, Prefetcher& prefetcher) {
        if (!task.direct)
            convert(tile, task.visible_from(0, tile), task.visible_to(task.job.count - 1, tile));
        const int64_t blocks = (task.rows + kMaxRows - 1) / kMaxRows;
        if (task.direct)
            prefetcher.pace(blocks * steps_of_block(ceil_div(task.rows, blocks)));
        const int64_t bytes = task.direct ? 0 : kTile * task.token_bytes();
        const int64_t lines = ceil_div(bytes, blocks * kLineBytes);
        for (int64_t b = 0, row = 0; b < blocks; ++b) {
            prefetcher.steps(lines);
            // blocks of nearly equal size
            const int64_t end = quotient(task.rows * (b + 1), blocks);
            first = row;
            add_block(tile, row, static_cast<int>(end - row), prefetcher);
            row = end;
        }
    }

    // Returns the steps of the prefetcher in the products of a block of rows with a tile.
    int64_t steps_of_block(int64_t rows) const {
        const int64_t wide = wide_vectors(static_cast<int>(rows));
        const int64_t lines = ceil_div(wide * Numerics::CacheProducts::kLoaded, kLineBytes);
        const int64_t scores = quotient(step.dim * kTileVectors, kStep * wide);
        const int64_t values = quotient(kTile * task.padded, kStep * wide * kLanes);
        return lines * (scores + values);
    }

    // Converts keys and values from tile + begin to tile + end, and the keys that share a step with
    // them.
    void convert(int64_t tile, int begin, int end) const {
        const int64_t key_stride = task.call.tensor[4].stride[2];
        for (int v = begin / kLanes; v * kLanes < end; ++v) {
            const Cached* from = task.key_block(tile + v * kLanes);
            Packed* to = buffer.keys + v * step.dim * kLanes;
            for (int64_t d = 0; d < step.dim; d += kStep)
                Numerics::convert(to + d * kLanes, from + d * key_stride, key_stride, kLanes);
        }
        for (int j = begin / kStep * kStep; j < end; j += kStep) {
            const Cached* from = task.value_row(tile + j);
            Packed* to = buffer.values + j * kLanes;
            for (int64_t d = 0; d < step.value_dim; d += kLanes) {
                Numerics::convert(to + d * kTile, from + d, task.call.tensor[5].stride[2],
                                  lanes_from(d, step.value_dim));
            }
        }
    }

    // Computes the scores of rows [row, row + count) with the tile's keys from `begin` to `end`.
    void score(int64_t tile, int64_t row, int count, int begin, int end,
               Prefetcher& prefetcher) const {
        const Packed* queries = buffer.queries + row * step.dim;
        const int first_vector = begin / kLanes, vectors = (end - 1) / kLanes + 1 - first_vector;
        float* to = buffer.scores + (row - first) * kTile + first_vector * kLanes;
        if (task.direct) {
            const Cached* from[kTileVectors];
            for (int v = 0; v < vectors; ++v)
                from[v] = task.key_block(tile + (first_vector + v) * kLanes);
            multiply<typename Numerics::CacheProducts>(
                count, queries, step.dim, from, vectors, task.call.tensor[4].stride[2],
                step.dim / kStep, to, kTile, false, prefetcher);
            return;
        }
        NoPrefetch no_prefetch;
        const Packed* from[kTileVectors];
        for (int v = 0; v < vectors; ++v)
            from[v] = buffer.keys + (first_vector + v) * step.dim * kLanes;
        multiply<typename Numerics::TileProducts>(count, queries, step.dim, from, vectors,
                                                  kStep * kLanes, step.dim / kStep, to, kTile,
                                                  false, no_prefetch);
    }

    // Adds the weighted values of keys [begin, end) of the tile to rows [row, row + count). The
    // keys must be whole steps.
    void add_steps(int64_t tile, int64_t row, int count, int begin, int end,
                   Prefetcher& prefetcher) const {
        constexpr int kMax = 1024 / kLanes;
        const int vectors = static_cast<int>(task.padded / kLanes);
        const Packed* weights = buffer.weights + (row - first) * kTile;
        float* to = buffer.sums + row * task.padded;
        if (!task.direct) {
            NoPrefetch no_prefetch;
            const Packed* from[kMax];
            for (int v = 0; v < vectors; ++v)
                from[v] = buffer.values + (v * kTile + begin) * kLanes;
            multiply<typename Numerics::TileProducts>(count, weights + begin, kTile, from, vectors,
                                                      kStep * kLanes, (end - begin) / kStep, to,
                                                      task.padded, true, no_prefetch);
            return;
        }
        while (begin < end) { // one KV block at a time
            const int64_t left = step.block_size - remainder(tile + begin, step.block_size);
            const int n = static_cast<int>(smaller(left, end - begin));
            const Cached* from[kMax];
            from[0] = task.value_row(tile + begin);
            for (int v = 1; v < vectors; ++v)
                from[v] = from[v - 1] + kLanes;
            multiply<typename Numerics::CacheProducts>(count, weights + begin, kTile, from, vectors,
                                                       task.call.tensor[5].stride[2], n / kStep, to,
                                                       task.padded, true, prefetcher);
            begin += n;
        }
    }

    // Does the same as add_steps, for keys that may begin or end within a step.
    void add_values(int64_t tile, int64_t row, int count, int begin, int end,
                    Prefetcher& prefetcher) const {
        if constexpr (kStep == 2) {
            if (begin % 2 != 0)
                add_half_step(tile, row, count, begin++);
            if (begin < end && end % 2 != 0) {
                add_values(tile, row, count, begin, end - 1, prefetcher);
                return add_half_step(tile, row, count, end - 1);
            }
        }
        if (begin < end)
            add_steps(tile, row, count, begin, end, prefetcher);
    }

    // Adds a pair of which these rows see only `key`; the other key counts as 0, whatever its
    // value.
    void add_half_step(int64_t tile, int64_t row, int count, int key) const {
        for (int64_t d = 0; d < task.padded; d += kLanes) {
            const int n = lanes_from(d, step.value_dim);
            const Cached* from = task.value_row(tile + key) + d;
            const auto column = Numerics::half_column(from, n, key % 2);
            for (int64_t i = row; i < row + count; ++i) {
                const auto factor = Numerics::TileProducts::factor(
                    buffer.weights + (i - first) * kTile + key / 2 * 2);
                float* sum = buffer.sums + i * task.padded + d;
                store(sum, Numerics::TileProducts::add(load(sum), factor, column));
            }
        }
    }

    // Computes rows [row, row + count) with one tile: scores, weights, values. The steps that all
    // of these rows see are added for all rows together; the remaining keys of each row are added
    // before and after these steps.
    void add_block(int64_t tile, int64_t row, int count, Prefetcher& prefetcher) const {
        const int64_t first_token = quotient(row, step.group);
        const int64_t last_token = quotient(row + count - 1, step.group);
        const int begin = task.visible_from(first_token, tile);
        const int end = task.visible_to(last_token, tile);
        if (begin >= kTile || end <= 0)
            return; // no row sees a key of this tile
        score(tile, row, count, begin, end, prefetcher);
        weigh_rows(task, buffer, tile, row, count, row - first, Numerics::weigh);
        const int from = task.visible_from(last_token, tile);
        const int to = task.visible_to(first_token, tile);
        const int shared_from = (from + kStep - 1) / kStep * kStep;
        const int shared_to = larger(shared_from, to / kStep * kStep);
        if (begin < shared_from)
            own_values(tile, row, count, 0, shared_from, prefetcher);
        if (shared_from < shared_to)
            add_steps(tile, row, count, shared_from, shared_to, prefetcher);
        if (shared_to < end)
            own_values(tile, row, count, shared_to, kTile, prefetcher);
    }

    // For each row, adds the values of the keys within [low, high) of the tile that the row sees.
    void own_values(int64_t tile, int64_t row, int count, int64_t low, int64_t high,
                    Prefetcher& prefetcher) const {
        const int64_t end = row + count;
        while (row < end) {
            const int64_t token = quotient(row, step.group);
            const int64_t next = smaller(end, (token + 1) * step.group);
            const int from = static_cast<int>(larger(low, task.visible_from(token, tile)));
            const int to = static_cast<int>(smaller(high, task.visible_to(token, tile)));
            if (from < to)
                add_values(tile, row, static_cast<int>(next - row), from, to, prefetcher);
            row = next;
        }
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
