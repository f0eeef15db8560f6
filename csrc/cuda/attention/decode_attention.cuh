// Attention of short chunks over long contexts (arXiv 2205.14135 over split keys): a persistent
// grid walks (row, chunk) units; the program that ends a row adds its parts up in order.
//
// A warp takes 16 neighbouring keys at a time, which lie in one block of the cache. Keys and values
// go from memory straight into tensor-core fragments, 16 bytes a load, because the order of the
// head dimension (for scores) and of its places in the result (for outputs) is free:
//   scores   lane (g, t) holds dimensions 32 c + 8 t .. + 7 of key g: two products a chunk c of 32
//   outputs  lane (g, t) holds dimensions 64 u + 8 g .. + 7 of keys 2t, 2t + 1, 2t + 8, 2t + 9;
//            column g of product j of group u stands for dimension 64 u + 8 g + j
// Rows of the tile are queries: token r / shared of the chunk, head r % shared of the KV head.
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
    int block_shift; // a block has 1 << block_shift tokens
};

constexpr int kWarpsOfDecode = 4;
constexpr int kQueries = 16;
constexpr int kKeys = 16;

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
    unit.cut = cut_of(unit.context, unit.tokens, call.window);
    return unit;
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

// What a warp has of its keys: queries g and g + 8 of lane (g, t).
template <int kDim>
struct Partial {
    float top[2] = {-INFINITY, -INFINITY};
    float mass[2] = {0.0f, 0.0f}; // of this lane's keys alone
    float outputs[kDim / 64][8][4] = {};
};

template <int kDim>
__device__ __forceinline__ void scores_of(float (&scores)[2][4],
                                          const uint32_t (&query)[kDim / 32][2][4],
                                          const Words4 (&keys)[2][kDim / 32]) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                const uint32_t b[2] = {keys[tile][c].word[2 * step],
                                       keys[tile][c].word[2 * step + 1]};
                multiply_add(scores[tile], query[c][step], b);
            }
        }
    }
}

// Scales the scores, hides what is not seen, and turns them into weights under a running maximum.
// `base`: the first of the 16 keys; `last`: the first key that does not exist or is another
// chunk's.
template <int kDim>
__device__ __forceinline__ void weigh(float (&scores)[2][4], Partial<kDim>& partial, float scale,
                                      int base, int last, const int (&position)[2], int window,
                                      int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float peak = partial.top[half];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int tile = i / 2;
            const int key = base + 8 * tile + 2 * t + i % 2;
            float& score = scores[tile][2 * half + i % 2];
            const bool seen = key < last && key <= position[half] &&
                              (window == 0 || key > position[half] - window);
            score = seen ? score * scale : -INFINITY;
            peak = fmaxf(peak, score);
        }
        peak = fmaxf(peak, __shfl_xor_sync(kWholeWarp, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(kWholeWarp, peak, 2));
        // A query that has seen nothing keeps -inf: zero stands in, for 2^(-inf - 0) = 0.
        const float level = peak == -INFINITY ? 0.0f : peak;
        const float fade = power_of_two(partial.top[half] - level);
        partial.mass[half] *= fade;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& score = scores[i / 2][2 * half + i % 2];
            score = power_of_two(score - level);
            partial.mass[half] += score;
        }
#pragma unroll
        for (int u = 0; u < kDim / 64; ++u) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                partial.outputs[u][j][2 * half] *= fade;
                partial.outputs[u][j][2 * half + 1] *= fade;
            }
        }
        partial.top[half] = peak;
    }
}

template <int kDim>
__device__ __forceinline__ void add_outputs(Partial<kDim>& partial, const float (&weights)[2][4],
                                            const Words4 (&values)[4][kDim / 64]) {
    const uint32_t a[4] = {
        pack_bf16(weights[0][0], weights[0][1]), pack_bf16(weights[0][2], weights[0][3]),
        pack_bf16(weights[1][0], weights[1][1]), pack_bf16(weights[1][2], weights[1][3])};
#pragma unroll
    for (int u = 0; u < kDim / 64; ++u) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const uint32_t selector = j % 2 ? 0x7632 : 0x5410;
            const uint32_t b[2] = {
                permute_bytes(values[0][u].word[j / 2], values[1][u].word[j / 2], selector),
                permute_bytes(values[2][u].word[j / 2], values[3][u].word[j / 2], selector)};
            multiply_add(partial.outputs[u][j], a, b);
        }
    }
}

// The queries as left operands: dimensions in the order of the keys' loads.
template <int kDim>
__device__ __forceinline__ void load_queries(uint32_t (&query)[kDim / 32][2][4],
                                             const DecodeAttention& call, const Unit& unit,
                                             int queries, int g, int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        const bool present = row < queries;
        const Bf16* source = call.q + (present ? query_place<kDim>(call, unit, row) : 0) + 8 * t;
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            const Words4 words = present ? load16(source + 32 * c) : Words4{};
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                query[c][step][half] = words.word[2 * step];
                query[c][step][2 + half] = words.word[2 * step + 1];
            }
        }
    }
}

// A warp's share of the unit's keys: each kWarpsOfDecode-th sixteen of them.
template <int kDim, class Cached>
__device__ __forceinline__ void attend(Partial<kDim>& partial, const DecodeAttention& call,
                                       const Unit& unit, int queries, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    uint32_t query[kDim / 32][2][4];
    load_queries<kDim>(query, call, unit, queries, g, t);
    const int shared = call.q_heads / call.kv_heads;
    const int own = unit.context - unit.tokens;
    const int position[2] = {own + g / shared, own + (g + 8) / shared};
    const int64_t begin = static_cast<int64_t>(unit.chunk) * unit.cut.size;
    const int64_t end = begin + unit.cut.size;
    const int last = static_cast<int>(end < unit.context ? end : unit.context);
    int base = static_cast<int>(begin > unit.cut.oldest ? begin : unit.cut.oldest / kKeys * kKeys);
    base += warp * kKeys;
    const int32_t* const table = call.tables + static_cast<int64_t>(unit.row) * call.table_width;
    const int64_t panel = (static_cast<int64_t>(unit.kv_head) << call.block_shift) * kDim;
    const float scale =
        call.key_scales ? call.log2_scale * call.key_scales[unit.kv_head] : call.log2_scale;
    const int offset_mask = (1 << call.block_shift) - 1;
    int block = base < last ? table[base >> call.block_shift] : 0;
    for (; base < last; base += kWarpsOfDecode * kKeys) {
        const int64_t row = panel + (base & offset_mask) * kDim;
        const Cached* const keys =
            static_cast<const Cached*>(call.keys) + block * call.key_stride + row + 8 * t;
        const Cached* const values =
            static_cast<const Cached*>(call.values) + block * call.value_stride + row + 8 * g;
        // Read ahead, so that the next keys need not wait for their place; the last read is idle.
        const int next = base + kWarpsOfDecode * kKeys;
        block = table[(next < last ? next : base) >> call.block_shift];
        Words4 key_words[2][kDim / 32], value_words[4][kDim / 64];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) {
                key_words[tile][c] = stream_cached(keys + (8 * tile + g) * kDim + 32 * c);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = 2 * t + i % 2 + 8 * (i / 2);
            // What nobody wrote may be NaN, which a weight of zero does not hide.
            const bool exists = base + key < last;
#pragma unroll
            for (int u = 0; u < kDim / 64; ++u) {
                value_words[i][u] = exists ? stream_cached(values + key * kDim + 64 * u) : Words4{};
            }
        }
        float scores[2][4] = {};
        scores_of<kDim>(scores, query, key_words);
        weigh<kDim>(scores, partial, scale, base, last, position, call.window, t);
        add_outputs<kDim>(partial, scores, value_words);
    }
    // The four lanes of a query held its keys apart.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        partial.mass[half] += __shfl_xor_sync(kWholeWarp, partial.mass[half], 1);
        partial.mass[half] += __shfl_xor_sync(kWholeWarp, partial.mass[half], 2);
    }
}

// What the warps of a block leave for each other. Rows of outputs are padded, and fours of a row
// stand in an order that lets eight lanes store to different banks.
template <int kDim>
struct alignas(16) Gathered {
    static constexpr int kPadded = kDim + 8;
    float outputs[kWarpsOfDecode][kQueries][kPadded];
    float top[kWarpsOfDecode][kQueries];
    float mass[kWarpsOfDecode][kQueries];
};

// Where dimension `dim` of a row of gathered outputs lies.
__device__ __forceinline__ int gathered_place(int dim) {
    return dim ^ (dim >> 5 & 1) << 2;
}

// Rows from `queries` on do not exist, and are left out.
template <int kDim>
__device__ __forceinline__ void gather(Gathered<kDim>& gathered, const Partial<kDim>& partial,
                                       int queries, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = g + 8 * half;
        if (query >= queries)
            continue;
        if (t == 0) {
            gathered.top[warp][query] = partial.top[half];
            gathered.mass[warp][query] = partial.mass[half];
        }
#pragma unroll
        for (int u = 0; u < kDim / 64; ++u) {
#pragma unroll
            for (int four = 0; four < 4; ++four) {
                const int i = four / 2, j = four % 2 * 4;
                const auto& outputs = partial.outputs[u];
                const int at = gathered_place(64 * u + 16 * t + 4 * four);
                store_floats(&gathered.outputs[warp][query][at], outputs[j][2 * half + i],
                             outputs[j + 1][2 * half + i], outputs[j + 2][2 * half + i],
                             outputs[j + 3][2 * half + i]);
            }
        }
    }
}

// Writes the unit's result, or its part where the row has more units.
template <int kDim>
__device__ __forceinline__ void write_unit(const DecodeAttention& call, const Unit& unit,
                                           const Gathered<kDim>& gathered, int queries) {
    const float value_scale = call.value_scales ? call.value_scales[unit.kv_head] : 1.0f;
    for (int index = threadIdx.x; index < queries * kDim; index += blockDim.x) {
        const int query = index / kDim, dim = index % kDim;
        float top = -INFINITY;
        for (int w = 0; w < kWarpsOfDecode; ++w)
            top = fmaxf(top, gathered.top[w][query]);
        const float level = top == -INFINITY ? 0.0f : top;
        float mass = 0.0f, output = 0.0f;
        for (int w = 0; w < kWarpsOfDecode; ++w) {
            const float share = power_of_two(gathered.top[w][query] - level);
            mass += gathered.mass[w][query] * share;
            output += gathered.outputs[w][query][gathered_place(dim)] * share;
        }
        output *= value_scale;
        if (unit.cut.count == 1) {
            output *= add_sink(call, unit, query, top, mass);
            const float result = output / (mass > 0.0f ? mass : 1.0f);
            call.out[query_place<kDim>(call, unit, query) + dim] = to_bf16(result);
            continue;
        }
        const int64_t part = unit.item * call.lanes + query;
        call.parts[part * kDim + dim] = output;
        if (dim == 0) {
            call.stats[2 * part] = top;
            call.stats[2 * part + 1] = mass;
        }
    }
}

// Adds up the parts of a row, whose units are neighbours in the order of its chunks.
template <int kDim>
__device__ __forceinline__ void add_parts(const DecodeAttention& call, const Unit& unit,
                                          int queries) {
    const int earlier = unit.chunk - unit.cut.oldest / unit.cut.size;
    const int64_t first = unit.item - static_cast<int64_t>(earlier) * call.kv_heads;
    const int64_t stride = static_cast<int64_t>(call.kv_heads) * call.lanes;
    for (int index = threadIdx.x; index < queries * kDim; index += blockDim.x) {
        const int query = index / kDim, dim = index % kDim;
        const int64_t begin = first * call.lanes + query;
        float top = -INFINITY;
        for (int c = 0; c < unit.cut.count; ++c) {
            top = fmaxf(top, load_shared_cache(call.stats + 2 * (begin + c * stride)));
        }
        const float level = top == -INFINITY ? 0.0f : top;
        float mass = 0.0f, output = 0.0f;
#pragma unroll 4
        for (int c = 0; c < unit.cut.count; ++c) {
            const int64_t part = begin + c * stride;
            const float share = power_of_two(load_shared_cache(call.stats + 2 * part) - level);
            mass += load_shared_cache(call.stats + 2 * part + 1) * share;
            output += load_shared_cache(call.parts + part * kDim + dim) * share;
        }
        output *= add_sink(call, unit, query, top, mass);
        const float result = output / (mass > 0.0f ? mass : 1.0f);
        call.out[query_place<kDim>(call, unit, query) + dim] = to_bf16(result);
    }
}

template <int kDim, class Cached>
__global__ void __launch_bounds__(kWarpsOfDecode* kWarp, 2)
    decode_attention_kernel(const DecodeAttention call) {
    __shared__ Gathered<kDim> gathered;
    __shared__ bool is_last;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    let_later_start();
    wait_for_earlier();
    const int64_t items = static_cast<int64_t>(call.unit_count[0]) * call.kv_heads;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const Unit unit = unit_of(call, item);
        const int queries = unit.tokens * (call.q_heads / call.kv_heads);
        Partial<kDim> partial;
        attend<kDim, Cached>(partial, call, unit, queries, warp, lane);
        gather<kDim>(gathered, partial, queries, warp, lane);
        __syncthreads();
        write_unit<kDim>(call, unit, gathered, queries);
        if (unit.cut.count > 1) {
            int32_t* const arrived = call.arrived + unit.row * call.kv_heads + unit.kv_head;
            __threadfence(); // each thread's part is written before one of them says so
            __syncthreads();
            if (threadIdx.x == 0) {
                is_last = atomicAdd(arrived, 1) == unit.cut.count - 1;
                __threadfence();
            }
            __syncthreads();
            if (is_last) {
                add_parts<kDim>(call, unit, queries);
                if (threadIdx.x == 0)
                    *arrived = 0;
            }
        }
        __syncthreads(); // the next unit uses the same memory
    }
}

} // namespace penstock::cuda
