// Decode attention: short chunks of queries over long contexts, by split-KV (FlashAttention, arXiv
// 2205.14135, over chunks of keys).
//
// Every warp processes its own items; an item is one chunk of one row's keys for one KV head. Warps
// need neither barriers nor shared memory: while one warp looks up an item or writes a result, the
// other warps of its multiprocessor keep memory busy. Within an item, the next sixteen keys are
// loaded while weights and outputs of the current keys are computed, and the values of the next
// keys while their scores are computed. The warp that finishes a row last adds up the row's partial
// results, in the order of the keys.
#pragma once

#include "cuda/attention/decode_tile.cuh"

namespace penstock::cuda {

// The work unit of an item, held by the lane that looked up the item.
struct LookedUp {
    int row, chunk, start, tokens, context;
};

__device__ __forceinline__ LookedUp look_up(const DecodeAttention& call, int unit) {
    LookedUp found;
    found.row = call.units[2 * unit];
    found.chunk = call.units[2 * unit + 1];
    found.start = call.starts[found.row];
    found.tokens = call.starts[found.row + 1] - found.start;
    found.context = call.contexts[found.row];
    return found;
}

__device__ __forceinline__ Item item_of(const DecodeAttention& call, int number,
                                        const LookedUp& looked_up, int lane) {
    Item item;
    item.number = number;
    item.kv_head = number % call.kv_heads;
    item.row = __shfl_sync(kWholeWarp, looked_up.row, lane);
    item.chunk = __shfl_sync(kWholeWarp, looked_up.chunk, lane);
    item.start = __shfl_sync(kWholeWarp, looked_up.start, lane);
    item.tokens = __shfl_sync(kWholeWarp, looked_up.tokens, lane);
    item.context = __shfl_sync(kWholeWarp, looked_up.context, lane);
    item.cut = cut_of(item.context, item.tokens, call.window, call.chunk);
    return item;
}

// Finds the tiles of an item in the KV cache. Each lane holds the KV block of one of the next 32
// tiles.
class TileAddresses {
  public:
    __device__ TileAddresses(const DecodeAttention& call, const Item& item, const Keys& keys)
        : call_(call), keys_(keys),
          table_(call.tables + static_cast<int64_t>(item.row) * call.table_width) {}

    // Sets `keys` and `values` to the element offsets of tile `tile` of the item.
    template <int kDim>
    __device__ __forceinline__ void find(int tile, int kv_head, int64_t& keys, int64_t& values) {
        const int lane = threadIdx.x % kWarp;
        if (tile % kWarp == 0) {
            const int own = keys_.base + kKeys * (tile + lane);
            block_ = table_[min(own, keys_.last - 1) >> call_.block_shift];
        }
        const int64_t block = __shfl_sync(kWholeWarp, block_, tile % kWarp);
        const int offset = (keys_.base + kKeys * tile) & ((1 << call_.block_shift) - 1);
        const int64_t row = ((static_cast<int64_t>(kv_head) << call_.block_shift) + offset) * kDim;
        keys = block * call_.key_stride + row;
        values = block * call_.value_stride + row;
    }

  private:
    const DecodeAttention& call_;
    const Keys keys_;
    const int32_t* const table_;
    int block_ = 0;
};

// Loads queries first .. first + 7 of the item; queries from `queries` on are zero.
template <int kDim>
__device__ __forceinline__ void load_queries(QueryTile<kDim>& tile, const DecodeAttention& call,
                                             const Item& item, int first, int queries, int lane) {
    const int query = first + lane / 4;
    const bool present = query < queries;
    const Bf16* const from =
        call.q + (present ? query_offset<kDim>(call, item, query) : 0) + lane % 4 * 8;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        const Words4 words = present ? load16(from + 32 * c) : Words4{};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            tile.words[c][i / 2][i % 2] = words.word[i];
    }
}

__device__ __forceinline__ Seen seen_by(const DecodeAttention& call, const Item& item, int last,
                                        int first) {
    const int shared = call.q_heads / call.kv_heads;
    Seen seen;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = first + threadIdx.x % 4 * 2 + i;
        const int position = item.context - item.tokens + query / shared;
        seen.newest[i] = min(position, last - 1);
        seen.oldest[i] = call.window == 0 ? 0 : position - call.window + 1;
    }
    return seen;
}

// Computes attention of queries first .. first + 7 over the item's keys.
template <int kDim, class Cached>
__device__ __forceinline__ void attend(Partial<kDim>& partial, const DecodeAttention& call,
                                       const Item& item, int first, int queries) {
    const int lane = threadIdx.x % kWarp;
    const Keys keys = keys_of(item);
    const auto* const cached_keys = static_cast<const Cached*>(call.keys);
    const auto* const cached_values = static_cast<const Cached*>(call.values);
    TileAddresses addresses(call, item, keys);
    int64_t key_offset, value_offset;
    KeyTile<kDim, Cached> key_tile;
    ValueTile<kDim, Cached> value_tile;
    addresses.template find<kDim>(0, item.kv_head, key_offset, value_offset);
    load_keys<kDim>(key_tile, cached_keys + key_offset, lane);
    load_values<kDim>(value_tile, cached_values + value_offset, keys.last - keys.base, lane);
    QueryTile<kDim> query_tile;
    load_queries<kDim>(query_tile, call, item, first, queries, lane);
    const Seen seen = seen_by(call, item, keys.last, first);
    const float scale =
        call.key_scales ? call.log2_scale * call.key_scales[item.kv_head] : call.log2_scale;
    const int tiles = (keys.last - keys.base + kKeys - 1) / kKeys;
    for (int tile = 0; tile < tiles; ++tile) {
        const int base = keys.base + kKeys * tile, next = base + kKeys;
        float scores[4] = {};
        add_scores<kDim>(scores, key_tile, query_tile);
        if (next < keys.last) {
            addresses.template find<kDim>(tile + 1, item.kv_head, key_offset, value_offset);
            load_keys<kDim>(key_tile, cached_keys + key_offset, lane);
        }
        weigh<kDim>(scores, partial, scale, base, seen, lane / 4);
        add_outputs<kDim>(partial, scores, value_tile, lane);
        if (next < keys.last)
            load_values<kDim>(value_tile, cached_values + value_offset, keys.last - next, lane);
    }
    // The eight lanes of a query hold disjoint keys.
#pragma unroll
    for (int query = 0; query < 2; ++query) {
#pragma unroll
        for (int mask = 4; mask < kWarp; mask *= 2)
            partial.mass[query] += __shfl_xor_sync(kWholeWarp, partial.mass[query], mask);
    }
}

// Writes the results of queries first .. first + 7, or their partial results if the row has more
// chunks of keys.
template <int kDim>
__device__ __forceinline__ void write_item(const DecodeAttention& call, const Item& item,
                                           const Partial<kDim>& partial, int first, int queries) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const float value_scale = call.value_scales ? call.value_scales[item.kv_head] : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = first + 2 * t + i;
        if (query >= queries)
            continue;
        float mass = partial.mass[i], factor = value_scale;
        if (item.cut.count == 1) {
            factor *= add_sink(call, item, query, partial.top[i], mass);
            factor /= mass > 0.0f ? mass : 1.0f;
        }
        const int64_t part = static_cast<int64_t>(item.number) * call.lanes + query;
        const int64_t place = query_offset<kDim>(call, item, query);
#pragma unroll
        for (int u = 0; u < kDim / 64; ++u) {
            float outputs[8];
#pragma unroll
            for (int d = 0; d < 8; ++d)
                outputs[d] = partial.outputs[u][d / 2][d % 2 * 2 + i] * factor;
            const int dim = 64 * u + 8 * g;
            if (item.cut.count == 1) {
                store16(call.out + place + dim, pack(outputs));
                continue;
            }
            float* const to = call.parts + part * kDim + dim;
            store_floats(to, outputs[0], outputs[1], outputs[2], outputs[3]);
            store_floats(to + 4, outputs[4], outputs[5], outputs[6], outputs[7]);
        }
        if (item.cut.count > 1 && g == 0) {
            call.stats[2 * part] = partial.top[i];
            call.stats[2 * part + 1] = mass;
        }
    }
}

constexpr int kAddedAtOnce = 4; // queries whose parts are loaded concurrently

// Adds up the partial results of a row. The items of successive chunks are kv_heads items from each
// other. A lane computes four dimensions of every query, or of every second query.
template <int kDim>
__device__ __forceinline__ void add_parts(const DecodeAttention& call, const Item& item,
                                          int queries) {
    constexpr int kLanes = kDim / 4, kRows = kWarp / kLanes;
    const int lane = threadIdx.x % kWarp, dim = lane % kLanes * 4;
    const int earlier = item.chunk - item.cut.oldest / item.cut.size;
    const int64_t begin =
        (item.number - static_cast<int64_t>(earlier) * call.kv_heads) * call.lanes;
    const int64_t stride = static_cast<int64_t>(call.kv_heads) * call.lanes;
    for (int base = lane / kLanes; base < queries; base += kRows * kAddedAtOnce) {
        float top[kAddedAtOnce], mass[kAddedAtOnce] = {}, outputs[kAddedAtOnce][4] = {};
        int64_t place[kAddedAtOnce];
#pragma unroll
        for (int i = 0; i < kAddedAtOnce; ++i) {
            top[i] = -INFINITY;
            place[i] = begin + min(base + i * kRows, queries - 1);
        }
#pragma unroll 4
        for (int c = 0; c < item.cut.count; ++c) {
#pragma unroll
            for (int i = 0; i < kAddedAtOnce; ++i)
                top[i] = fmaxf(top[i], load_shared_cache(call.stats + 2 * (place[i] + c * stride)));
        }
#pragma unroll 2
        for (int c = 0; c < item.cut.count; ++c) {
#pragma unroll
            for (int i = 0; i < kAddedAtOnce; ++i) {
                const int64_t part = place[i] + c * stride;
                const float reference = top[i] == -INFINITY ? 0.0f : top[i];
                const float share =
                    power_of_two(load_shared_cache(call.stats + 2 * part) - reference);
                mass[i] += load_shared_cache(call.stats + 2 * part + 1) * share;
                const Words4 words = load16_shared_cache(call.parts + part * kDim + dim);
#pragma unroll
                for (int d = 0; d < 4; ++d)
                    outputs[i][d] += as_float(words.word[d]) * share;
            }
        }
#pragma unroll
        for (int i = 0; i < kAddedAtOnce; ++i) {
            const int query = base + i * kRows;
            if (query >= queries)
                continue;
            const float rescale = add_sink(call, item, query, top[i], mass[i]);
            const float factor = rescale / (mass[i] > 0.0f ? mass[i] : 1.0f);
            const Words2 words{{pack_bf16(outputs[i][0] * factor, outputs[i][1] * factor),
                                pack_bf16(outputs[i][2] * factor, outputs[i][3] * factor)}};
            *reinterpret_cast<Words2*>(call.out + query_offset<kDim>(call, item, query) + dim) =
                words;
        }
    }
}

// Adds up the row's partial results if this warp finishes the last item of the row.
template <int kDim>
__device__ __forceinline__ void finish_row(const DecodeAttention& call, const Item& item,
                                           int queries) {
    int32_t* const arrived = call.arrived + item.row * call.kv_heads + item.kv_head;
    __threadfence(); // each lane's part is written before the warp is counted
    __syncwarp();
    int before = 0;
    if (threadIdx.x % kWarp == 0)
        before = atomicAdd(arrived, 1);
    if (__shfl_sync(kWholeWarp, before, 0) != item.cut.count - 1)
        return;
    __threadfence();
    add_parts<kDim>(call, item, queries);
    if (threadIdx.x % kWarp == 0)
        *arrived = 0;
}

template <int kDim, class Cached>
__device__ __forceinline__ void attend_item(const DecodeAttention& call, const Item& item) {
    const int queries = item.tokens * (call.q_heads / call.kv_heads);
    for (int first = 0; first < queries; first += kQueriesOfTile) {
        Partial<kDim> partial;
        attend<kDim, Cached>(partial, call, item, first, queries);
        write_item<kDim>(call, item, partial, first, queries);
    }
    if (item.cut.count > 1)
        finish_row<kDim>(call, item, queries);
}

// Computes decode attention. kPrograms: minimum of resident blocks per multiprocessor.
template <int kDim, class Cached, int kPrograms>
__global__ void __launch_bounds__(kWarpsOfDecode* kWarp, kPrograms)
    decode_attention_kernel(const DecodeAttention call) {
    let_later_start();
    wait_for_earlier();
    const int lane = threadIdx.x % kWarp, warps = gridDim.x * kWarpsOfDecode;
    const int items = call.unit_count[0] * call.kv_heads;
    // A warp looks up 32 items at a time, one per lane, since the loads of a look-up depend on each
    // other.
    int first = blockIdx.x * kWarpsOfDecode + threadIdx.x / kWarp;
    for (; first < items; first += kWarp * warps) {
        const int own = first + lane * warps;
        const LookedUp looked_up = look_up(call, (own < items ? own : first) / call.kv_heads);
        for (int i = 0; i < kWarp && first + i * warps < items; ++i)
            attend_item<kDim, Cached>(call, item_of(call, first + i * warps, looked_up, i));
    }
}

} // namespace penstock::cuda
