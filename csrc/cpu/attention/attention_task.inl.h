// One attention task: its rows, the keys that these rows see, and the addresses of the keys in the
// cache. Included by attention.inl.h, which documents the arguments.
#pragma once

#include "cpu/attention/attention_partition.inl.h"
#include "cpu/attention/attention_tile.inl.h"
#include "cpu/ops/activation.inl.h"
#include "cpu/simd/simd.h"
#include "cpu/sizes.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

constexpr float kLog2e = 1.44269504088896341f;

// The L2 cache that a task may count on. If the context of a KV head fits, only the first of a
// chunk's many tasks loads it from memory.
constexpr int64_t kL2Bytes = 1 << 20;

// An attention task over a cache with elements of type `Element`.
template <class Element>
struct Task {
    const Arguments& call;
    const Step& step;
    const Job& job;
    const int32_t* table;
    int64_t position; // position of the block's first token
    int64_t padded;   // elements of a value in whole vectors
    int64_t rows;     // count * G
    bool direct;      // few rows: cache elements are converted each time they are read
    bool prefetches;  // whether to prefetch the next tile
    bool biased;
    float cap; // the cap of scores in units of log2; 0: none

    Task(const Arguments& call, const Step& step, const Job& job)
        : call(call), step(step), job(job), table(call.tensor[3].row<int32_t>(job.row)),
          position(step.chunk_position(job.row) + job.first),
          padded(round_up(step.value_dim, kLanes)), rows(job.count * step.group),
          direct(rows <= 2 * kMaxRows && step.value_dim % kLanes == 0),
          prefetches(direct ||
                     token_bytes() * step.cached_heads * step.contexts[job.row] > kL2Bytes),
          biased(step.reach == Reach::both && call.tensor[7].data), cap(call.real[1] * kLog2e) {}

    // Elements that have the size of the scale of a key or value in an 8-bit cache.
    static constexpr int64_t kScaleElements = sizeof(Element) == 1 ? 4 : 0;

    // Returns the bytes of a KV block's keys, or as many values, of one KV head.
    int64_t piece_bytes() const {
        return step.block_size * (step.dim + kScaleElements) *
               static_cast<int64_t>(sizeof(Element));
    }
    // Returns the bytes of one key and one value of one KV head.
    int64_t token_bytes() const {
        return (step.dim + step.value_dim + 2 * kScaleElements) *
               static_cast<int64_t>(sizeof(Element));
    }

    // Return the first and the end of the keys that the block's token i sees, within the 64 keys
    // from `tile` on.
    int visible_from(int64_t i, int64_t tile) const {
        return static_cast<int>(larger(0, step.first_visible(job.row, position + i) - tile));
    }
    int visible_to(int64_t i, int64_t tile) const {
        return static_cast<int>(smaller(kTile, step.end_visible(job.row, position + i) - tile));
    }

    // Returns the KV head of the cache that this task reads.
    int64_t cached_head() const { return step.cached_heads == 1 ? 0 : job.kv_head; }

    const Element* key_block(int64_t key) const {
        const TensorView& keys = call.tensor[4];
        return keys.row<Element>(table[quotient(key, step.block_size)]) +
               cached_head() * keys.stride[1] + remainder(key, step.block_size);
    }
    const Element* value_row(int64_t key) const {
        const TensorView& values = call.tensor[5];
        return values.row<Element>(table[quotient(key, step.block_size)]) +
               cached_head() * values.stride[1] +
               remainder(key, step.block_size) * values.stride[2];
    }

    // Returns the query heads of the block's token i, [G, width], in a tensor with one row per
    // token (queries or result).
    float* heads_of(const TensorView& rows, int64_t i, int64_t width) const {
        return rows.row<float>(step.starts[job.row] + job.first + i) +
               job.kv_head * step.group * width;
    }
    // Returns the factor of queries. Scores are in units of log2 or, before they are capped, in
    // units of the cap.
    F32 query_scale() const {
        return broadcast(cap > 0.0f ? call.real[0] / call.real[1] : call.real[0] * kLog2e);
    }

    // Addresses of the KV blocks to prefetch during the tile at `tile`: those of the next tile, or
    // of the next KV head's first tile.
    struct Pieces {
        const char* start[2 * kTile / kLanes];
        int count = 0;
    };
    Pieces pieces_after(int64_t tile) const {
        Pieces pieces;
        const int64_t seen = step.end_visible(job.row, position + job.count - 1);
        const int64_t unit = step.block_size;
        int64_t next = tile + kTile, head = 0;
        if (next >= seen) {
            if (job.kv_head + 1 >= step.cached_heads)
                return pieces;
            next = step.first_visible(job.row, position) / kTile * kTile, head = 1;
        }
        const int64_t end = smaller(next + kTile, seen);
        const int64_t begin = larger(next, step.first_visible(job.row, position)) / unit * unit;
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

    // Turns scores s in units of the cap into cap * tanh(s), for the tile's keys from `begin` to
    // `end` in whole vectors.
    void cap_scores(int begin, int end, float* row_scores) const {
        for (int v = begin / kLanes; v * kLanes < end; ++v) {
            float* scores = row_scores + v * kLanes;
            store(scores, activation::Tanh::of(load(scores)) * broadcast(cap));
        }
    }

    // Adds the bias to the scores [kTile] of row i, for the tile's keys from `begin` to `end` in
    // whole vectors.
    void add_bias(int64_t tile, int64_t i, int begin, int end, float* row_scores) const {
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
            float* scores = row_scores + v * kLanes;
            store(scores, fma(added, log2e, load(scores)));
        }
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
