// Attention over an 8-bit cache: of the rows of a task over one tile of keys, in integers, instead
// of TileRows. Included by attention.inl.h.
//
// The cache holds int8 with a float32 scale per token and KV head (cpu/ops/rope.inl.h writes it).
// The int8 are in pairs, the operands of a product: of two components of a key, and of two keys of
// one component. The scales of a KV block and head follow its int8. A scaled query is rounded to 15
// bits with a scale of its own, at most 16383 in size, so that a score of up to 1,024 components is
// summed exactly in int32. The softmax weights of a row, times the scales of the values, are
// rounded to 16 bits with a scale per row and tile, and the values of a tile are summed exactly
// too. So neither the order of additions nor the size of vectors affects a sum, and weights of zero
// hide keys whatever their bytes are.
//
// A scale of a key or value is NaN if the key or value was not finite; so are then the results of
// the rows that see it.
#pragma once

#include "cpu/attention/attention_f32.inl.h"
#include "cpu/attention/attention_rows.inl.h"
#include "cpu/dot/int16_pairs.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/unrolled.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

constexpr float kLargestQuery = 16383.0f, kLargestWeight = 32767.0f;
// Vectors whose largest number is below this are rounded to zero: its inverse must be finite.
constexpr float kLeastPeak = 1e-30f;

// The pairs of a product: `count` runs of `steps` pairs each, whose starts are for each vector in
// turn, or (`adjacent`) only of the first vector, which the others follow in memory. The pairs of a
// vector are `stride` apart. `Element`: int8 in the cache, or int16 in a converted tile.
template <class Element, bool adjacent>
struct Runs {
    const Element* const* starts;
    const int* steps; // of each run
    int count;
    int64_t stride;

    using Item = Element;
    static constexpr bool kAdjacent = adjacent;
    static constexpr int kVector = 2 * kLanes;
    static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(Element));

    PENSTOCK_INLINE Int16Pairs column(const int8_t* p) { return load_int8_pairs(p); }
    PENSTOCK_INLINE Int16Pairs column(const int16_t* p) { return load_int16_pairs(p); }

    // Returns the same runs from a vector on.
    Runs from(int vector) const { return {starts + (adjacent ? 0 : vector), steps, count, stride}; }
};

// The vectors of a block of rows, whose sums and operands fit the register file. A product needs a
// register before it is added.
constexpr int integer_vectors(int rows) {
#if defined(PENSTOCK_SIMD_AVX2)
    return rows == 3 ? 3 : wide_vectors(rows);
#else
    return wide_vectors(rows);
#endif
}

// c[r][v] = sum over all pairs of a[r] * b[v], per lane, exactly; `first`: the first vector of
// adjacent ones. See `multiply_block` in attention_tile.inl.h.
template <int rows, int vectors, class Pairs, class Fetch>
[[gnu::noinline]] void sum_block(const int16_t* a, int64_t a_stride, const Pairs& pairs, int first,
                                 int32_t* c, int64_t c_stride, Fetch& prefetcher) {
    constexpr bool adjacent = Pairs::kAdjacent;
    constexpr int kUnroll = 4;
    constexpr int lines = (kUnroll * vectors * Pairs::kVectorBytes + 63) / 64;
    I32 sum[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            sum[r][v] = broadcast(int32_t{0});
    }
    Fetch fetch = prefetcher; // a copy, which stays in registers
    for (int run = 0; run < pairs.count; ++run) {
        const typename Pairs::Item* from[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            from[v] = adjacent ? pairs.starts[run] + first * Pairs::kVector : pairs.starts[v];
        int64_t at = 0;
        const auto add = [&](int64_t k) {
            Int16Pairs factors[rows];
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
                factors[r] = broadcast_int16_pair(a + r * a_stride + 2 * k);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) {
                const auto column =
                    Pairs::column(from[v] + at + (adjacent ? v * Pairs::kVector : 0));
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r)
                    sum[r][v] = add_int16_pairs(sum[r][v], factors[r], column);
            }
            at += pairs.stride;
        };
        const int64_t steps = pairs.steps[run];
        int64_t k = 0;
        for (; k + kUnroll <= steps; k += kUnroll) {
#pragma GCC unroll 8
            for (int i = 0; i < (lines + 3) / 4; ++i)
                fetch.four_steps();
#pragma GCC unroll 8
            for (int i = 0; i < kUnroll; ++i)
                add(k + i);
        }
        for (; k < steps; ++k)
            add(k);
        a += 2 * steps;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += c_stride) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            store(c + v * kLanes, sum[r][v]);
    }
    prefetcher = fetch;
}

// Calls sum_block for 1 <= rows <= kMaxRows and all vectors.
template <class Pairs, class Fetch>
void sum_pairs(int rows, const int16_t* a, int64_t a_stride, const Pairs& pairs, int vectors,
               int32_t* c, int64_t c_stride, Fetch& prefetcher) {
    with_count<kMaxRows>(rows, [&](auto count) {
        constexpr int wide = integer_vectors(count.value);
        int v = 0;
        const auto block = [&](auto width) {
            sum_block<count.value, width.value>(a, a_stride, pairs.from(v), v, c + v * kLanes,
                                                c_stride, prefetcher);
            v += width.value;
        };
        while (v + wide <= vectors)
            block(Index<wide>{});
        while (wide > 2 && v + 2 <= vectors)
            block(Index<2>{});
        while (v < vectors)
            block(Index<1>{});
    });
}

struct Int8Rows;

struct Int8Numerics {
    using Cached = int8_t;
    using Packed = int16_t; // type of queries and weights, and of values of a tile
    using Rows = Int8Rows;
    static constexpr int kStep = 2, kDepthUnit = 2, kScoredRows = kMaxRows;
    static constexpr bool kIntegers = true;
};

// Returns NaN if a lane of `a` is not finite, else 0.
PENSTOCK_INLINE F32 not_finite(F32 a) {
    return a - a;
}

// Rounds a scaled query to integers, and returns their scale. Writes the dim integers to `to`.
inline float round_query(const float* from, int64_t dim, F32 query_scale, int16_t* to) {
    F32 top = broadcast(0.0f), broken = broadcast(0.0f);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const F32 a = load_lanes(from + i, lanes_from(i, dim)) * query_scale;
        top = max(abs(a), top);
        broken = broken + not_finite(a);
    }
    const float peak = reduce_max(top);
    const F32 factor = broadcast(peak > kLeastPeak ? kLargestQuery / peak : 0.0f);
    const F32 most = broadcast(kLargestQuery);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        int16_t rounded[kLanes];
        store_i16(rounded, to_int(min(load_lanes(from + i, n) * query_scale * factor, most)));
        std::memcpy(to + i, rounded, static_cast<size_t>(n) * sizeof *to);
    }
    return peak / kLargestQuery + reduce_add(broken);
}

inline void pack_queries(const Task<int8_t>& task, const Buffers<Int8Numerics>& buffer) {
    const int64_t dim = task.step.dim;
    int16_t* to = buffer.queries;
    float* scale = buffer.query_scales;
    for (int64_t token = 0; token < task.job.count; ++token) {
        const float* from = task.heads_of(task.call.tensor[0], token, dim);
        for (int64_t g = 0; g < task.step.group; ++g, from += dim, to += dim)
            *scale++ = round_query(from, dim, task.query_scale(), to);
    }
}

struct Int8Rows {
    const Task<int8_t>& task;
    const Step& step;
    const Buffers<Int8Numerics>& buffer;

    // The places of a tile's keys in the cache, for each vector of keys of which a row sees one.
    struct Places {
        const int8_t *keys[kTileVectors], *values[kTileVectors];
        const float *key_scales[kTileVectors], *value_scales[kTileVectors];
        int64_t offsets[kTileVectors]; // in their KV blocks
    };
    Places places = {}; // of the current tile

    // Computes all rows with one tile of keys, and prefetches the next tile meanwhile.
    void add(int64_t tile, Prefetcher& prefetcher) {
        find_places(tile);
        if (!whole_vectors())
            convert_values(tile);
        const int64_t blocks = (task.rows + kMaxRows - 1) / kMaxRows;
        for (int64_t b = 0, row = 0; b < blocks; ++b) { // of nearly equal size
            const int64_t end = quotient(task.rows * (b + 1), blocks);
            add_block(tile, row, static_cast<int>(end - row), prefetcher);
            row = end;
        }
    }

  private:
    bool whole_vectors() const { return step.value_dim % kLanes == 0; }
    int64_t seen_end() const {
        return step.end_visible(task.job.row, task.position + task.job.count - 1);
    }

    void find_places(int64_t tile) {
        const int begin = task.visible_from(0, tile);
        const int end = task.visible_to(task.job.count - 1, tile);
        const TensorView &keys = task.call.tensor[4], &values = task.call.tensor[5];
        const int64_t head = task.cached_head(), size = step.block_size;
        int64_t block = quotient(tile, size), offset = remainder(tile, size);
        for (int v = 0; v * kLanes < end; ++v, offset += kLanes) {
            if (offset == size)
                ++block, offset = 0;
            if ((v + 1) * kLanes <= begin)
                continue; // the table may have no block here
            const int8_t* key = keys.row<int8_t>(task.table[block]) + head * keys.stride[1];
            const int8_t* value = values.row<int8_t>(task.table[block]) + head * values.stride[1];
            places.keys[v] = key + 2 * offset;
            places.values[v] = value + offset * step.value_dim;
            places.key_scales[v] = reinterpret_cast<const float*>(key + size * step.dim) + offset;
            places.value_scales[v] =
                reinterpret_cast<const float*>(value + size * step.value_dim) + offset;
            places.offsets[v] = offset;
        }
    }

    // Computes rows [row, row + count) with one tile: scores, weights, values.
    void add_block(int64_t tile, int64_t row, int count, Prefetcher& prefetcher) const {
        const int64_t first_token = quotient(row, step.group);
        const int64_t last_token = quotient(row + count - 1, step.group);
        const int begin = task.visible_from(first_token, tile);
        const int end = task.visible_to(last_token, tile);
        if (begin >= kTile || end <= 0)
            return; // no row sees a key of this tile
        score(row, count, begin, end, prefetcher);
        weigh_rows(task, buffer, tile, row, count, 0,
                   [&](const Scored<int16_t>& scored) { weigh(scored); });
        add_values(row, count, begin / 2 * 2, (end + 1) / 2 * 2, prefetcher);
    }

    // Computes the scores of rows [row, row + count) with the tile's keys from `begin` to `end`.
    void score(int64_t row, int count, int begin, int end, Prefetcher& prefetcher) const {
        const int first_vector = begin / kLanes, vectors = (end - 1) / kLanes + 1 - first_vector;
        const int steps = static_cast<int>(step.dim / 2);
        const Runs<int8_t, false> pairs{places.keys + first_vector, &steps, 1, 2 * step.block_size};
        sum_pairs(count, buffer.queries + row * step.dim, step.dim, pairs, vectors, buffer.products,
                  kTile, prefetcher);
        for (int r = 0; r < count; ++r) {
            const F32 scale = broadcast(buffer.query_scales[row + r]);
            float* to = buffer.scores + r * kTile + first_vector * kLanes;
            const int32_t* products = buffer.products + r * kTile;
            for (int v = 0; v < vectors; ++v) {
                const F32 product = to_float(load(products + v * kLanes));
                store(to + v * kLanes, product * scale * load(places.key_scales[first_vector + v]));
            }
        }
    }

    // The scales of a tile's values as a row sees them: 0 for keys that it does not see. `broken`
    // is NaN if a scale is NaN, else 0.
    struct Scales {
        float of_key[kTile];
        int from = 0, to = 0;
        float broken;
    };

    void load_scales(Scales& scales, int from, int to) const {
        scales.from = from, scales.to = to;
        const F32 zero = broadcast(0.0f);
        F32 broken = zero;
        for (int v = from / kLanes; v * kLanes < to; ++v) {
            F32 scale = load(places.value_scales[v]);
            if (v * kLanes < from)
                scale = select(first(from - v * kLanes), zero, scale);
            if ((v + 1) * kLanes > to)
                scale = select(first(to - v * kLanes), scale, zero);
            store(scales.of_key + v * kLanes, scale);
            broken = broken + not_finite(scale);
        }
        scales.broken = reduce_add(broken);
    }

    // Turns scores into weights, times the scales of the values, and rounds them.
    void weigh(const Scored<int16_t>& scored) const {
        const F32 zero = broadcast(0.0f);
        Scales scales;
        F32 tops[8] = {zero, zero, zero, zero, zero, zero, zero, zero};
        float broken[8];
        weigh_seen(scored, [&](int r, float reference, float shrink) {
            if (scored.from[r] != scales.from || scored.to[r] != scales.to)
                load_scales(scales, scored.from[r], scored.to[r]);
            tops[r] = weigh_row(scored, r, reference, shrink, scales.of_key);
            broken[r] = scales.broken;
        });
        float peaks[kLanes], factors[kLanes];
        const F32 peak = reduce_max_each(tops);
        store(peaks, peak * broadcast(1.0f / kLargestWeight));
        store(factors,
              select(less(broadcast(kLeastPeak), peak), broadcast(kLargestWeight) / peak, zero));
        for (int r = 0; r < scored.count; ++r) {
            const bool sees = scored.from[r] < scored.to[r];
            buffer.weight_scales[r] = sees ? peaks[r] + broken[r] : 0.0f;
            round_weights(scored, r, factors[r]);
        }
    }

    // Returns the largest weight of each lane.
    PENSTOCK_INLINE F32 weigh_row(const Scored<int16_t>& scored, int r, float reference,
                                  float shrink, const float* scales) {
        F32 mass = load(scored.mass + r * kLanes) * broadcast(shrink), top = broadcast(0.0f);
        scored.for_seen_vectors(r, [&](int v) {
            float* scores = scored.scores + r * kTile + v * kLanes;
            const F32 weight = exp2_nonpositive(load(scores) - broadcast(reference));
            const F32 scaled = weight * load(scales + v * kLanes);
            store(scores, scaled);
            mass = mass + weight;
            top = max(scaled, top);
        });
        store(scored.mass + r * kLanes, mass);
        scored.shrink(r, shrink);
        return top;
    }

    PENSTOCK_INLINE void round_weights(const Scored<int16_t>& scored, int r, float factor) {
        int16_t* rounded = scored.weights + r * kTile;
        if (!scored.sees_all(r))
            std::memset(rounded, 0, kTile * sizeof *rounded);
        scored.for_seen_vectors(r, [&](int v) {
            const F32 weight = load(scored.scores + r * kTile + v * kLanes) * broadcast(factor);
            store_i16(rounded + v * kLanes, to_int(min(weight, broadcast(kLargestWeight))));
        });
    }

    // Adds the weighted values of keys [begin, end) of the tile, whole pairs, to rows [row, row +
    // count).
    void add_values(int64_t row, int count, int begin, int end, Prefetcher& prefetcher) const {
        constexpr int kMost = kTile / kLanes; // KV blocks of a tile, or vectors of one row
        const int vectors = static_cast<int>(task.padded / kLanes);
        const int16_t* weights = buffer.weights + begin;
        if (whole_vectors()) {
            const int8_t* from[kMost];
            int steps[kMost], runs = 0;
            for (int key = begin; key < end; ++runs) { // one KV block at a time
                const int v = key / kLanes, within = key % kLanes;
                const int64_t left = step.block_size - places.offsets[v] - within;
                from[runs] = places.values[v] + within * step.value_dim;
                steps[runs] = static_cast<int>(smaller(left, end - key)) / 2;
                key += 2 * steps[runs];
            }
            const Runs<int8_t, true> pairs{from, steps, runs, 2 * step.value_dim};
            sum_pairs(count, weights, kTile, pairs, vectors, buffer.products, task.padded,
                      prefetcher);
        } else {
            NoPrefetch no_prefetch;
            const int16_t* from[1024 / kLanes];
            const int steps = (end - begin) / 2;
            for (int v = 0; v < vectors; ++v)
                from[v] = buffer.values + (v * kTile + begin) * kLanes;
            const Runs<int16_t, false> pairs{from, &steps, 1, 2 * kLanes};
            sum_pairs(count, weights, kTile, pairs, vectors, buffer.products, task.padded,
                      no_prefetch);
        }
        for (int r = 0; r < count; ++r) {
            if (buffer.weight_scales[r] != 0.0f)
                add_products(buffer.products + r * task.padded, buffer.weight_scales[r],
                             buffer.sums + (row + r) * task.padded);
        }
    }

    void add_products(const int32_t* products, float scale, float* sums) const {
        for (int64_t d = 0; d < task.padded; d += kLanes)
            store(sums + d, fma(to_float(load(products + d)), broadcast(scale), load(sums + d)));
    }

    // Converts the values of a tile to int16, with zeros past D. Only for values that are no whole
    // vectors, which could not be loaded without the memory after the cache.
    void convert_values(int64_t tile) const {
        const int64_t keys = smaller(kTile, (seen_end() - tile + 1) / 2 * 2);
        const int64_t first = larger(0, task.visible_from(0, tile)) / 2 * 2;
        for (int64_t key = first; key < keys; key += 2) {
            const int8_t* from = places.values[key / kLanes] + key % kLanes * step.value_dim;
            for (int64_t d = 0; d < task.padded; d += kLanes) {
                int16_t* to = buffer.values + d * kTile + key * kLanes;
                for (int64_t i = 0; i < 2 * kLanes; ++i)
                    to[i] = 2 * d + i < 2 * step.value_dim ? from[2 * d + i] : int16_t{0};
            }
        }
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
