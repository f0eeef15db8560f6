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

#include "cuda/attention/decode_ahead.cuh"

namespace penstock::cuda {

// A warp's share of the unit's keys, from memory into registers: loads are waited for at once.
template <int kDim, class Cached>
__device__ __forceinline__ void attend(Partial<kDim>& partial, const DecodeAttention& call,
                                       const Unit& unit, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    Queries<kDim> queries;
    load_unit<kDim>(queries, call, unit, lane);
    auto [base, last] = keys_of(unit, warp);
    const int32_t* const table = table_of(call, unit);
    const int64_t panel = panel_of<kDim>(call, unit);
    const int offset_mask = (1 << call.block_shift) - 1;
    int block = base < last ? table[base >> call.block_shift] : 0;
    for (; base < last; base += kKeysOfBlock) {
        const int64_t row = panel + (base & offset_mask) * kDim;
        const Cached* const keys =
            static_cast<const Cached*>(call.keys) + block * call.key_stride + row + 8 * t;
        const Cached* const values =
            static_cast<const Cached*>(call.values) + block * call.value_stride + row + 8 * g;
        // Read ahead, so that the next keys need not wait for their place; the last read is idle.
        const int next = base + kKeysOfBlock;
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
        scores_of<kDim>(scores, queries.words, key_words);
        weigh<kDim>(scores, partial, queries.scale, base, last, queries.position, call.window, t);
        add_outputs<kDim>(partial, scores, value_words);
    }
    join_masses<kDim>(partial);
}

// What the warps of a block leave for each other. Rows of outputs are padded, and fours of a row
// stand in an order that lets eight lanes store to different banks.
template <int kDim>
struct Gathered {
    static constexpr int kPadded = kDim + 8;
    float* outputs; // [kWarpsOfDecode, rows, kPadded]
    float* top;     // [kWarpsOfDecode, rows]
    float* mass;
    int rows;

    __host__ __device__ static constexpr int bytes(int rows) {
        return 4 * kWarpsOfDecode * rows * (kPadded + 2);
    }
    __device__ Gathered(unsigned char* memory, int rows_)
        : outputs(reinterpret_cast<float*>(memory)),
          top(outputs + kWarpsOfDecode * rows_ * kPadded), mass(top + kWarpsOfDecode * rows_),
          rows(rows_) {}
};

// Where dimension `dim` of a row of gathered outputs lies.
__device__ __forceinline__ int gathered_place(int dim) {
    return dim ^ (dim >> 5 & 1) << 2;
}

// Rows from `queries` on do not exist, and are left out.
template <int kDim>
__device__ __forceinline__ void gather(const Gathered<kDim>& gathered, const Partial<kDim>& partial,
                                       int queries, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = g + 8 * half;
        if (query >= queries)
            continue;
        float* const row =
            gathered.outputs + (warp * gathered.rows + query) * Gathered<kDim>::kPadded;
        if (t == 0) {
            gathered.top[warp * gathered.rows + query] = partial.top[half];
            gathered.mass[warp * gathered.rows + query] = partial.mass[half];
        }
#pragma unroll
        for (int u = 0; u < kDim / 64; ++u) {
#pragma unroll
            for (int four = 0; four < 4; ++four) {
                const int i = four / 2, j = four % 2 * 4;
                const auto& outputs = partial.outputs[u];
                const int at = gathered_place(64 * u + 16 * t + 4 * four);
                store_floats(row + at, outputs[j][2 * half + i], outputs[j + 1][2 * half + i],
                             outputs[j + 2][2 * half + i], outputs[j + 3][2 * half + i]);
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
            top = fmaxf(top, gathered.top[w * gathered.rows + query]);
        const float level = top == -INFINITY ? 0.0f : top;
        float mass = 0.0f, output = 0.0f;
        for (int w = 0; w < kWarpsOfDecode; ++w) {
            const float share = power_of_two(gathered.top[w * gathered.rows + query] - level);
            mass += gathered.mass[w * gathered.rows + query] * share;
            const int row = (w * gathered.rows + query) * Gathered<kDim>::kPadded;
            output += gathered.outputs[row + gathered_place(dim)] * share;
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

// Joins what the warps have of a unit, and its parts where it is the last of its row to come.
template <int kDim>
__device__ __forceinline__ void finish_unit(const DecodeAttention& call, const Unit& unit,
                                            const Gathered<kDim>& gathered,
                                            const Partial<kDim>& partial) {
    __shared__ bool is_last;
    const int queries = unit.tokens * (call.q_heads / call.kv_heads);
    gather<kDim>(gathered, partial, queries, threadIdx.x / kWarp, threadIdx.x % kWarp);
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

template <int kDim, class Cached>
__device__ __forceinline__ void attend_items(const DecodeAttention& call, int64_t items,
                                             const Gathered<kDim>& gathered) {
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const Unit unit = unit_of(call, item);
        Partial<kDim> partial;
        attend<kDim, Cached>(partial, call, unit, threadIdx.x / kWarp, threadIdx.x % kWarp);
        finish_unit<kDim>(call, unit, gathered, partial);
    }
}

// The same with copies under way: units are looked up many at a time, one a thread, and each warp
// asks for keys and values kStages times before it waits, across the ends of units.
template <int kDim, class Cached, int kStages>
__device__ __forceinline__ void attend_items_ahead(const DecodeAttention& call, int64_t items,
                                                   const Gathered<kDim>& gathered,
                                                   Stage<kDim, Cached>* ring) {
    __shared__ Unit listed[kListed];
    const int64_t step = static_cast<int64_t>(kListed) * gridDim.x;
    for (int64_t first = blockIdx.x; first < items; first += step) {
        const int64_t left = (items - first + gridDim.x - 1) / gridDim.x;
        const int count = static_cast<int>(left < kListed ? left : kListed);
        const int own = threadIdx.x;
        if (own < count)
            listed[own] = unit_of(call, first + static_cast<int64_t>(own) * gridDim.x);
        __syncthreads();
        Reader<kDim, Cached, kStages> reader(call, listed, count, ring);
        for (int at = 0; at < count; ++at) {
            Partial<kDim> partial;
            attend_ahead<kDim, Cached, kStages>(partial, call, listed[at], reader);
            finish_unit<kDim>(call, listed[at], gathered, partial);
        }
    }
}

// kStages 0: without copies under way. kPrograms: blocks that shall fit a multiprocessor.
template <int kDim, class Cached, int kStages, int kPrograms>
__global__ void __launch_bounds__(kWarpsOfDecode* kWarp, kPrograms)
    decode_attention_kernel(const DecodeAttention call) {
#ifdef PENSTOCK_EMULATED
    unsigned char* const memory = emulated::dynamic_shared;
#else
    extern __shared__ __align__(16) unsigned char memory[];
#endif
    let_later_start();
    wait_for_earlier();
    const Gathered<kDim> gathered(memory, call.lanes);
    const int64_t items = static_cast<int64_t>(call.unit_count[0]) * call.kv_heads;
    if constexpr (kStages == 0) {
        attend_items<kDim, Cached>(call, items, gathered);
    } else {
        auto* const ring =
            reinterpret_cast<Stage<kDim, Cached>*>(memory + Gathered<kDim>::bytes(call.lanes));
        attend_items_ahead<kDim, Cached, kStages>(call, items, gathered, ring);
    }
}

} // namespace penstock::cuda
