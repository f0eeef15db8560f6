// Prefill attention over the paged KV cache on sm_90a (after FlashAttention-3, arXiv 2407.08608): a
// persistent grid over tiles of 128 queries. One producer warp loads queries, keys and values by
// TMA; two consumer warp groups multiply 64 queries each. An e4m3 cache is copied as it is stored;
// three more warps convert it to the bfloat16 that the matrix products need, with the same kind of
// buffers and barriers.
//
// The rows of a tile are queries: row r is token r / shared of the tile, and query head r % shared
// of the KV head. The bits of a row depend only on its own query and keys. First, tiles of keys
// start at multiples of 128 positions, in any tile of queries and any chunk. Second, a tile of keys
// that the row does not see leaves its sums unchanged (a weight of exactly 0, a factor of exactly
// 1). Third, every rounding is explicit, because the compiler may fuse a multiplication and an
// addition in one copy of the loop but not in another.
#pragma once

#include "cuda/attention/prefill_attention.h"

namespace penstock::cuda {

// --- producer warp ------------------------------------------------------------------------------

// Copies a tile of keys or of values. Each lane copies boxes: one piece of a KV block, or of a part
// of one. KV blocks that begin at `last` or later are filled with zeros.
template <int kDim>
__device__ __forceinline__ void copy_tile(unsigned char* to, const TensorMap& map, Buffer& buffer,
                                          const PipelineState& state, const PrefillAttention& call,
                                          const Tile& tile, int base, int lane) {
    using Memory = PrefillMemory<kDim>;
    barrier_wait(&buffer.empty, state.phase ^ 1);
    if (lane == 0)
        barrier_arrive_expecting(&buffer.full, Memory::kPieces * Memory::kPieceBytes);
    __syncwarp();
    const int box_keys = min(1 << call.block_shift, kTileKeys);
    for (int i = lane; i < kTileKeys / box_keys * Memory::kPieces; i += kWarp) {
        const int piece = i % Memory::kPieces, offset = i / Memory::kPieces * box_keys;
        const int key = base + offset;
        const int32_t* const table = call.tables + int64_t{1} * tile.row * call.table_width;
        const int block = key < tile.last ? table[key >> call.block_shift] : call.blocks;
        const int at[4] = {piece * kBoxColumns, key & ((1 << call.block_shift) - 1), tile.kv_head,
                           block};
        copy_box(to + piece * Memory::kPieceBytes + offset * 2 * kBoxColumns, map, &buffer.full,
                 at);
    }
}

// Copies a tile of keys or of values of an e4m3 cache, a box per KV block.
template <int kDim>
__device__ __forceinline__ void
copy_narrow(unsigned char* to, const TensorMap& map, Buffer& buffer, const PipelineState& state,
            const PrefillAttention& call, const Tile& tile, int base, int lane) {
    barrier_wait(&buffer.empty, state.phase ^ 1);
    if (lane == 0)
        barrier_arrive_expecting(&buffer.full, NarrowMemory<kDim>::kBytes);
    __syncwarp();
    const int box_keys = min(1 << call.block_shift, kTileKeys);
    for (int offset = lane * box_keys; offset < kTileKeys; offset += kWarp * box_keys) {
        const int key = base + offset;
        const int32_t* const table = call.tables + int64_t{1} * tile.row * call.table_width;
        const int block = key < tile.last ? table[key >> call.block_shift] : call.blocks;
        const int at[4] = {0, key & ((1 << call.block_shift) - 1), tile.kv_head, block};
        copy_box(to + offset * kDim, map, &buffer.full, at);
    }
}

template <int kDim>
__device__ __forceinline__ void copy_queries(PrefillMemory<kDim>& memory, const TensorMap& map,
                                             uint32_t phase, const PrefillAttention& call,
                                             const Tile& tile, int lane) {
    using Memory = PrefillMemory<kDim>;
    const int shared = call.q_heads / call.kv_heads;
    barrier_wait(&memory.of_queries.empty, phase ^ 1);
    if (lane == 0)
        barrier_arrive_expecting(&memory.of_queries.full,
                                 Memory::kPieces * call.tile_tokens * shared * 2 * kBoxColumns);
    __syncwarp();
    if (lane < Memory::kPieces) {
        const int at[4] = {lane * kBoxColumns, tile.kv_head * shared, tile.first, 0};
        copy_box(memory.queries + lane * Memory::kPieceBytes, map, &memory.of_queries.full, at);
    }
}

template <int kDim, class Cached>
__device__ __forceinline__ void copy_tiles(typename MemoryOf<kDim, Cached>::Type& memory,
                                           const PrefillAttention& call, const PrefillMaps& maps,
                                           int lane) {
    constexpr bool kNarrow = sizeof(Cached) == 1;
    PipelineState state;
    uint32_t queries_phase = 0;
    for (int item = blockIdx.x; item < call.tiles * call.kv_heads; item += gridDim.x) {
        const Tile tile = tile_of(call, item);
        if (tile.tokens == 0)
            continue;
        copy_queries<kDim>(memory, maps.queries, queries_phase, call, tile, lane);
        queries_phase ^= 1;
        for (int base = tile.begin; base < tile.last; base += kTileKeys, state.next()) {
            const int stage = state.stage;
            if constexpr (kNarrow) {
                copy_narrow<kDim>(memory.narrow_keys[stage], maps.keys,
                                  memory.of_narrow_keys[stage], state, call, tile, base, lane);
                copy_narrow<kDim>(memory.narrow_values[stage], maps.values,
                                  memory.of_narrow_values[stage], state, call, tile, base, lane);
            } else {
                copy_tile<kDim>(memory.keys[stage], maps.keys, memory.of_keys[stage], state, call,
                                tile, base, lane);
                copy_tile<kDim>(memory.values[stage], maps.values, memory.of_values[stage], state,
                                call, tile, base, lane);
            }
        }
    }
}

// --- widening warps -----------------------------------------------------------------------------

// Converts a tile of e4m3 to bfloat16 pieces, with the same swizzle as pieces that TMA copies. A
// thread converts eight elements at a time; eight lanes write one row, and so all banks.
template <int kDim>
__device__ __forceinline__ void widen_tile(unsigned char* to, Buffer& wide,
                                           const unsigned char* from, Buffer& narrow,
                                           const PipelineState& state, int thread) {
    constexpr int kWords = kDim / 8; // per key
    barrier_wait(&narrow.full, state.phase);
    barrier_wait(&wide.empty, state.phase ^ 1);
#pragma unroll 4
    for (int i = thread; i < kTileKeys * kWords; i += kWideners) {
        const int key = i / kWords, word = i % kWords;
        const auto bytes = *reinterpret_cast<const Words2*>(from + 8 * i);
        unsigned char* const row = to + word / 8 * PrefillMemory<kDim>::kPieceBytes + key * 128;
        store16(row + (word % 8 ^ key % 8) * 16, widen(bytes.word));
    }
    async_proxy_fence();
    __syncwarp();
    if (thread % kWarp == 0) {
        barrier_arrive(&wide.full);
        barrier_arrive(&narrow.empty);
    }
}

template <int kDim>
__device__ __forceinline__ void widen_tiles(NarrowMemory<kDim>& memory,
                                            const PrefillAttention& call, int thread) {
    PipelineState state;
    for (int item = blockIdx.x; item < call.tiles * call.kv_heads; item += gridDim.x) {
        const Tile tile = tile_of(call, item);
        if (tile.tokens == 0)
            continue;
        for (int base = tile.begin; base < tile.last; base += kTileKeys, state.next()) {
            const int stage = state.stage;
            widen_tile<kDim>(memory.keys[stage], memory.of_keys[stage], memory.narrow_keys[stage],
                             memory.of_narrow_keys[stage], state, thread);
            widen_tile<kDim>(memory.values[stage], memory.of_values[stage],
                             memory.narrow_values[stage], memory.of_narrow_values[stage], state,
                             thread);
        }
    }
}

// --- consumer warp groups -----------------------------------------------------------------------

// A thread's fragments of a tile: rows g and g + 8 of its warp's sixteen rows, columns 8 j + 2t and
// 8 j + 2t + 1.
template <int kDim>
struct Share {
    float outputs[kDim / 2] = {};
    uint32_t weights[kTileKeys / 16][4];
    float top[2] = {-INFINITY, -INFINITY}; // of the scores, unscaled
    float mass[2] = {0.0f, 0.0f};          // softmax sum of this thread's keys only
    float rescale[2];
    int position[2]; // of the rows' tokens
};

// Starts scores = queries keys^T for 64 rows of queries.
template <int kDim>
__device__ __forceinline__ void start_scores(float (&scores)[kTileKeys / 2], uint32_t queries,
                                             uint32_t keys) {
    products_begin();
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
        const uint32_t at =
            k / kBoxColumns * PrefillMemory<kDim>::kPieceBytes + k % kBoxColumns * 2;
        multiply_shared(scores, matrix_descriptor(queries + at, 0, kSwizzleBytes),
                        matrix_descriptor(keys + at, 0, kSwizzleBytes), k > 0);
    }
    products_commit();
}

// Starts outputs += weights values.
template <int kDim>
__device__ __forceinline__ void start_outputs(Share<kDim>& share, uint32_t values) {
    products_begin();
#pragma unroll
    for (int k = 0; k < kTileKeys; k += 16) {
        const uint64_t b = matrix_descriptor(values + k * 2 * kBoxColumns,
                                             PrefillMemory<kDim>::kPieceBytes, kSwizzleBytes);
        multiply_registers(share.outputs, share.weights[k / 16], b);
    }
    products_commit();
}

// Masks the keys that a row does not see.
template <int kDim>
__device__ __forceinline__ void hide(const Share<kDim>& share, float (&scores)[kTileKeys / 2],
                                     int base, int window, int t) {
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i) {
        const int key = base + i / 4 * 8 + 2 * t + i % 2;
        const int position = share.position[i / 2 % 2];
        const bool seen = key <= position && (window == 0 || key > position - window);
        if (!seen)
            scores[i] = -INFINITY;
    }
}

// Turns the scores into weights relative to the running maximum, and sets `rescale` to the factor
// for earlier sums.
template <int kDim>
__device__ __forceinline__ void weigh(Share<kDim>& share, float (&scores)[kTileKeys / 2],
                                      float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float peak = share.top[half];
#pragma unroll
        for (int i = 0; i < kTileKeys / 4; ++i)
            peak = fmaxf(peak, scores[i / 2 * 4 + 2 * half + i % 2]);
        peak = fmaxf(peak, __shfl_xor_sync(kWholeWarp, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(kWholeWarp, peak, 2));
        // A row that has seen no key keeps -inf, and zero is used instead: 2^(-inf - 0) = 0.
        const float reference = peak == -INFINITY ? 0.0f : peak;
        share.rescale[half] = power_of_two((share.top[half] - reference) * scale);
        const float offset = -reference * scale;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kTileKeys / 4; ++i) {
            float& score = scores[i / 2 * 4 + 2 * half + i % 2];
            score = power_of_two(fused_multiply_add(score, scale, offset));
            sum += score;
        }
        share.mass[half] = fused_multiply_add(share.mass[half], share.rescale[half], sum);
        share.top[half] = peak;
    }
}

// Rounds the weights to bfloat16, as the left operand in registers. The scores already have its
// layout over threads: columns 16 k + 2t and 16 k + 2t + 1 of both rows, then the columns eight
// further.
template <int kDim>
__device__ __forceinline__ void round_weights(Share<kDim>& share,
                                              const float (&scores)[kTileKeys / 2]) {
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            share.weights[k][i] = pack_bf16(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
    }
}

template <int kDim>
__device__ __forceinline__ void fade_outputs(Share<kDim>& share) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i)
        share.outputs[i] *= share.rescale[i / 2 % 2];
}

// Zeroes values past the context: they may be NaN, which a weight of zero does not mask. Each warp
// group clears them itself before it reads them.
template <int kDim>
__device__ __forceinline__ void clear_values(unsigned char* values, int from, int group) {
    constexpr int kWords = 2 * kBoxColumns / 16; // of 16 bytes, per row of a piece
    const int rows = (kTileKeys - from) * PrefillMemory<kDim>::kPieces;
    for (int i = threadIdx.x % kGroup; i < rows * kWords; i += kGroup) {
        const int row = i / kWords, piece = row / (kTileKeys - from);
        unsigned char* const to = values + piece * PrefillMemory<kDim>::kPieceBytes +
                                  (from + row % (kTileKeys - from)) * 2 * kBoxColumns;
        store16(to + i % kWords * 16, Words4{});
    }
    async_proxy_fence();
    named_barrier(1 + group, kGroup);
}

// Returns the factor by which a tile's scores become exponents of two, the scale of the keys
// included.
template <class Cached>
__device__ __forceinline__ float score_scale(const PrefillAttention& call, const Tile& tile) {
    return sizeof(Cached) == 1 ? call.log2_scale * call.key_scales[tile.kv_head] : call.log2_scale;
}

// Adds the weight of a head's sink, which has no value, to `mass`, a sum of weights relative to the
// unscaled maximum `top`. Returns the factor by which the sums of the row must be rescaled.
template <class Cached>
__device__ __forceinline__ float add_sink(const PrefillAttention& call, const Tile& tile, int head,
                                          float top, float& mass) {
    if (call.sinks == nullptr)
        return 1.0f;
    const float sink = kLog2e * call.sinks[head], highest = top * score_scale<Cached>(call, tile);
    const float reference = fmaxf(highest, sink);
    const float rescale = power_of_two(highest - reference);
    mass = mass * rescale + power_of_two(sink - reference);
    return rescale;
}

template <int kDim, class Cached>
__device__ __forceinline__ void write_outputs(const PrefillAttention& call, const Tile& tile,
                                              const Share<kDim>& share, int row, int t) {
    const int shared = call.q_heads / call.kv_heads;
    const float scale = sizeof(Cached) == 1 ? call.value_scales[tile.kv_head] : 1.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float mass = share.mass[half];
        mass += __shfl_xor_sync(kWholeWarp, mass, 1);
        mass += __shfl_xor_sync(kWholeWarp, mass, 2);
        const int token = (row + 8 * half) / shared;
        const int head = tile.kv_head * shared + (row + 8 * half) % shared;
        if (token >= tile.tokens)
            continue;
        const float factor = scale * add_sink<Cached>(call, tile, head, share.top[half], mass);
        const float divisor = mass > 0.0f ? mass : 1.0f;
        const int64_t place = int64_t{1} * (tile.first + token) * call.q_heads;
        Bf16* const to = call.out + (place + head) * kDim;
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j) {
            const float low = factor * share.outputs[4 * j + 2 * half] / divisor;
            const float high = factor * share.outputs[4 * j + 2 * half + 1] / divisor;
            *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * t) = pack_bf16(low, high);
        }
    }
}

// Marks a buffer as read, by one arrival per warp once the whole warp has read it.
__device__ __forceinline__ void release(Buffer& buffer, int lane) {
    if (lane == 0)
        barrier_arrive(&buffer.empty);
}

// Computes the weights of the keys from `base` on.
template <int kDim, class Cached>
__device__ __forceinline__ void weigh_tile(const PrefillAttention& call, const Tile& tile,
                                           Share<kDim>& share, float (&scores)[kTileKeys / 2],
                                           int base, int t) {
    const bool hides = base + kTileKeys > tile.position + 1 ||
                       (call.window > 0 && base <= tile.last - 1 - call.window);
    if (hides)
        hide<kDim>(share, scores, base, call.window, t);
    weigh<kDim>(share, scores, score_scale<Cached>(call, tile));
}

// Computes the weights of a tile of keys while the products of the previous tile's outputs run.
template <int kDim, class Cached>
__device__ __forceinline__ void
attend_tile(PrefillMemory<kDim>& memory, const PrefillAttention& call, const Tile& tile,
            Share<kDim>& share, PipelineState& state, int group, int t, int lane) {
    const uint32_t queries = shared_address(memory.queries) + group * 64 * 2 * kBoxColumns;
    {
        float scores[kTileKeys / 2];
        barrier_wait(&memory.of_keys[state.stage].full, state.phase);
        start_scores<kDim>(scores, queries, shared_address(memory.keys[state.stage]));
        products_wait<0>();
        hold(scores);
        release(memory.of_keys[state.stage], lane);
        weigh_tile<kDim, Cached>(call, tile, share, scores, tile.begin, t);
        round_weights<kDim>(share, scores);
    }
    PipelineState before = state;
    state.next();
    for (int base = tile.begin + kTileKeys; base < tile.last; base += kTileKeys) {
        float scores[kTileKeys / 2];
        barrier_wait(&memory.of_keys[state.stage].full, state.phase);
        start_scores<kDim>(scores, queries, shared_address(memory.keys[state.stage]));
        barrier_wait(&memory.of_values[before.stage].full, before.phase);
        start_outputs<kDim>(share, shared_address(memory.values[before.stage]));
        products_wait<1>();
        hold(scores);
        release(memory.of_keys[state.stage], lane);
        weigh_tile<kDim, Cached>(call, tile, share, scores, base, t);
        products_wait<0>();
        hold(share.outputs);
        hold(share.weights);
        release(memory.of_values[before.stage], lane);
        fade_outputs<kDim>(share);
        round_weights<kDim>(share, scores);
        before = state;
        state.next();
    }
    release(memory.of_queries, lane);
    barrier_wait(&memory.of_values[before.stage].full, before.phase);
    // An e4m3 cache never gives NaN: it is always widened to finite numbers.
    if (sizeof(Cached) == 2 && tile.last % kTileKeys != 0)
        clear_values<kDim>(memory.values[before.stage], tile.last % kTileKeys, group);
    start_outputs<kDim>(share, shared_address(memory.values[before.stage]));
    products_wait<0>();
    hold(share.outputs);
    release(memory.of_values[before.stage], lane);
}

template <int kDim, class Cached>
__device__ __forceinline__ void attend_tiles(PrefillMemory<kDim>& memory,
                                             const PrefillAttention& call, int group, int lane) {
    const int t = lane % 4;
    const int row = group * 64 + threadIdx.x % kGroup / kWarp * 16 + lane / 4;
    const int shared = call.q_heads / call.kv_heads;
    PipelineState state;
    uint32_t queries_phase = 0;
    for (int item = blockIdx.x; item < call.tiles * call.kv_heads; item += gridDim.x) {
        const Tile tile = tile_of(call, item);
        if (tile.tokens == 0)
            continue;
        Share<kDim> share;
        share.position[0] = tile.position + row / shared;
        share.position[1] = tile.position + (row + 8) / shared;
        barrier_wait(&memory.of_queries.full, queries_phase);
        queries_phase ^= 1;
        attend_tile<kDim, Cached>(memory, call, tile, share, state, group, t, lane);
        write_outputs<kDim, Cached>(call, tile, share, row, t);
    }
}

// --- kernel -------------------------------------------------------------------------------------

template <int kDim, class Cached>
__device__ __forceinline__ void make_barriers(typename MemoryOf<kDim, Cached>::Type& memory) {
    constexpr bool kNarrow = sizeof(Cached) == 1;
    constexpr int kWidenerWarps = kWideners / kWarp;
    const auto make = [](Buffer& buffer, int writers, int readers) {
        barrier_init(&buffer.full, writers);
        barrier_init(&buffer.empty, readers);
    };
    if (threadIdx.x == 0) {
        make(memory.of_queries, 1, kReaderWarps);
        for (int stage = 0; stage < kStages; ++stage) {
            make(memory.of_keys[stage], kNarrow ? kWidenerWarps : 1, kReaderWarps);
            make(memory.of_values[stage], kNarrow ? kWidenerWarps : 1, kReaderWarps);
            if constexpr (kNarrow) {
                make(memory.of_narrow_keys[stage], 1, kWidenerWarps);
                make(memory.of_narrow_values[stage], 1, kWidenerWarps);
            }
        }
        publish_barriers();
    }
    __syncthreads();
}

template <int kDim, class Cached>
__device__ __forceinline__ void
prefill_attention(unsigned char* given, const PrefillAttention& call, const PrefillMaps& maps) {
    using Memory = typename MemoryOf<kDim, Cached>::Type;
    const uint32_t misaligned = shared_address(given) % kSwizzleBytes;
    auto& memory = *reinterpret_cast<Memory*>(given + (kSwizzleBytes - misaligned) % kSwizzleBytes);
    let_later_start();
    make_barriers<kDim, Cached>(memory);
    wait_for_earlier();
    const int group = threadIdx.x / kGroup, lane = threadIdx.x % kWarp;
    // Registers are allocated in multiples of eight: 40 per thread in the first warp group and 232
    // in the two consumer groups fit.
    if (group == 0) {
        warpgroup_reg_dealloc<40>();
        if (threadIdx.x < kWarp) {
            copy_tiles<kDim, Cached>(memory, call, maps, lane);
        } else {
            if constexpr (sizeof(Cached) == 1)
                widen_tiles<kDim>(memory, call, threadIdx.x - kWarp);
        }
    } else {
        warpgroup_reg_alloc<232>();
        attend_tiles<kDim, Cached>(memory, call, group - 1, lane);
    }
}

template <int kDim, class Cached>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_attention_kernel(const PrefillAttention call,
                             const __grid_constant__ PrefillMaps maps) {
#ifdef PENSTOCK_EMULATED
    prefill_attention<kDim, Cached>(emulated::dynamic_shared, call, maps);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char given[];
    prefill_attention<kDim, Cached>(given, call, maps);
#endif
}

} // namespace penstock::cuda
