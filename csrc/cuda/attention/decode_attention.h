// What the parts of decode attention share: the call, its units, the keys of a warp.
#pragma once

#include "cuda/attention/chunks.h"
#include "cuda/device.h"

namespace penstock::cuda {

struct DecodeAttention {
    Bf16* out;
    const Bf16* q;
    const void* keys; // bfloat16, or e4m3 with a scale for each KV head
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
    float* stats;     // [units, K, lanes, 2]: highest score, mass
    int32_t* arrived; // [R, K], zero before and after
    int64_t key_stride, value_stride;
    float log2_scale;
    int table_width, window, lanes, q_heads, kv_heads;
    int chunk;       // keys of the smallest chunk
    int block_shift; // a block has 1 << block_shift tokens
};

constexpr int kWarpsOfDecode = 4;
constexpr int kQueries = 16;
constexpr int kKeys = 16;

constexpr int kKeysOfBlock = kWarpsOfDecode * kKeys; // that its warps take at a time

// One unit for one KV head.
struct Unit {
    int row, kv_head, start, tokens, context, chunk;
    int64_t item;
    Cut cut;
};

__device__ __forceinline__ Unit unit_of(const DecodeAttention& call, int64_t item) {
    Unit unit;
    const int64_t index = item / call.kv_heads;
    unit.item = item;
    unit.kv_head = static_cast<int>(item % call.kv_heads);
    unit.row = call.units[2 * index];
    unit.chunk = call.units[2 * index + 1];
    unit.start = call.starts[unit.row];
    unit.tokens = call.starts[unit.row + 1] - unit.start;
    unit.context = call.contexts[unit.row];
    unit.cut = cut_of(unit.context, unit.tokens, call.window, call.chunk);
    return unit;
}

// Keys of a unit: a warp takes 16 at `base`, and at each kKeysOfBlock-th after it; `last` is the
// first that does not exist or is another chunk's.
struct Keys {
    int base, last;
};

__device__ __forceinline__ Keys keys_of(const Unit& unit, int warp) {
    const int64_t begin = static_cast<int64_t>(unit.chunk) * unit.cut.size;
    const int64_t end = begin + unit.cut.size;
    Keys keys;
    keys.last = static_cast<int>(end < unit.context ? end : unit.context);
    keys.base =
        static_cast<int>(begin > unit.cut.oldest ? begin : unit.cut.oldest / kKeys * kKeys) +
        warp * kKeys;
    return keys;
}

// The block table of the unit's row.
__device__ __forceinline__ const int32_t* table_of(const DecodeAttention& call, const Unit& unit) {
    return call.tables + static_cast<int64_t>(unit.row) * call.table_width;
}

// The element of a block where the unit's KV head begins.
template <int kDim>
__device__ __forceinline__ int64_t panel_of(const DecodeAttention& call, const Unit& unit) {
    return (static_cast<int64_t>(unit.kv_head) << call.block_shift) * kDim;
}

// The element of q and of the result where a query of the unit begins.
template <int kDim>
__device__ __forceinline__ int64_t query_place(const DecodeAttention& call, const Unit& unit,
                                               int query) {
    const int shared = call.q_heads / call.kv_heads;
    const int64_t token = unit.start + query / shared;
    return (token * call.q_heads + unit.kv_head * shared + query % shared) * kDim;
}

// Adds the weight of a query's sink, which has no value, to sums of weights 2^(score - top), and
// gives what they shrink by.
__device__ __forceinline__ float add_sink(const DecodeAttention& call, const Unit& unit, int query,
                                          float top, float& mass) {
    if (call.sinks == nullptr)
        return 1.0f;
    const int shared = call.q_heads / call.kv_heads;
    const float sink = kLog2e * call.sinks[unit.kv_head * shared + query % shared];
    const float level = fmaxf(top, sink);
    const float fade = power_of_two(top - level);
    mass = mass * fade + power_of_two(sink - level);
    return fade;
}

} // namespace penstock::cuda
