// The arguments of decode attention, and the items that its warps process.
#pragma once

#include "cuda/attention/chunks.h"
#include "cuda/device.h"

namespace penstock::cuda {

struct DecodeAttention {
    Bf16* out;
    const Bf16* q;
    const void* keys; // bfloat16, or e4m3 with a scale per KV head
    const void* values;
    const float* key_scales;
    const float* value_scales;
    const float* sinks; // [H], or null
    const int32_t* starts;
    const int32_t* contexts;
    const int32_t* tables;
    const int32_t* units; // [.., 2]: row, chunk
    const int32_t* unit_count;
    float* parts;     // [units, K, lanes, D]
    float* stats;     // [units, K, lanes, 2]: highest score, softmax sum
    int32_t* arrived; // [R, K], zero before and after
    int64_t key_stride, value_stride;
    float log2_scale;
    int table_width, window, lanes, q_heads, kv_heads;
    int chunk;       // keys of the smallest chunk
    int block_shift; // a KV block has 1 << block_shift tokens
};

constexpr int kWarpsOfDecode = 4;
constexpr int kQueriesOfTile = 8;
constexpr int kKeys = 16; // keys of a tile, all in one KV block

// One chunk of a row's keys for one KV head.
struct Item {
    int number, row, kv_head, start, tokens, context, chunk;
    Cut cut;
};

// The keys of an item: from `base`, a multiple of kKeys, up to `last` (exclusive), the end of the
// context or of the chunk.
struct Keys {
    int base, last;
};

__device__ __forceinline__ Keys keys_of(const Item& item) {
    const int64_t begin = static_cast<int64_t>(item.chunk) * item.cut.size;
    const int64_t end = begin + item.cut.size;
    const int64_t oldest = item.cut.oldest / kKeys * kKeys;
    return Keys{static_cast<int>(begin > oldest ? begin : oldest),
                static_cast<int>(end < item.context ? end : item.context)};
}

// Returns the offset of a query of the item in q and in the result.
template <int kDim>
__device__ __forceinline__ int64_t query_offset(const DecodeAttention& call, const Item& item,
                                                int query) {
    const int shared = call.q_heads / call.kv_heads;
    const int64_t token = item.start + query / shared;
    return (token * call.q_heads + item.kv_head * shared + query % shared) * kDim;
}

// Adds the weight of a query's sink, which has no value, to `mass`, a sum of weights 2^(score -
// top). Returns the factor by which the sums of the query must be rescaled.
__device__ __forceinline__ float add_sink(const DecodeAttention& call, const Item& item, int query,
                                          float top, float& mass) {
    if (call.sinks == nullptr)
        return 1.0f;
    const int shared = call.q_heads / call.kv_heads;
    const float sink = kLog2e * call.sinks[item.kv_head * shared + query % shared];
    const float reference = fmaxf(top, sink);
    const float rescale = power_of_two(top - reference);
    mass = mass * rescale + power_of_two(sink - reference);
    return rescale;
}

} // namespace penstock::cuda
