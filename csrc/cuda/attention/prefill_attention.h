// Prefill attention: its arguments, tiles and shared memory, used by all warp roles.
#pragma once

#include "cuda/hopper.h"

namespace penstock::cuda {

struct PrefillAttention {
    Bf16* out;
    const float* key_scales; // per KV head, if the cache is e4m3
    const float* value_scales;
    const float* sinks; // [H], or null
    const int32_t* starts;
    const int32_t* contexts;
    const int32_t* tables;
    float log2_scale;
    int rows, table_width, blocks, window, q_heads, kv_heads;
    int shorter;     // chunks of at most this many tokens are left to another kernel
    int tile_tokens; // tokens per tile of queries
    int tiles;       // most tiles per KV head that the tokens of the step can need
    int block_shift; // a KV block has 1 << block_shift tokens
};

// Tensor maps of q as [1, T, H, D] and of the caches as [B, K, P, D].
struct PrefillMaps {
    TensorMap queries, keys, values;
};

constexpr int kQueryRows = 128; // per tile: two groups of 64
constexpr int kTileKeys = 128;  // keys of a tile; the first position is a multiple of this
constexpr int kStages = 2;
constexpr int kPrefillThreads = 3 * kGroup;
constexpr int kReaderWarps = 2 * kGroup / kWarp;
constexpr int kWideners = 3 * kWarp; // threads that widen; the producer warp is a fourth warp

// A tile of queries: adjacent tokens of one chunk for one KV head, and the keys that they see.
struct Tile {
    int row, kv_head, first, tokens; // first: index among all tokens of the step
    int position;                    // position of the first token in its sequence
    int begin, last;                 // first key (start of a tile of keys), end of the keys
};

// Returns the tile of queries of a work item; its `tokens` is 0 if the item has no tile. Tiles with
// the highest index come first, because later tiles of a chunk see more keys. The tiles of chunk r
// start at index starts[r] / tile_tokens + r, which leaves room for the partial last tile of every
// chunk.
__device__ __forceinline__ Tile tile_of(const PrefillAttention& call, int item) {
    const int index = call.tiles - 1 - item / call.kv_heads;
    int row = 0, high = call.rows;
    while (high - row > 1) {
        const int middle = (row + high) / 2;
        if (call.starts[middle] / call.tile_tokens + middle <= index)
            row = middle;
        else
            high = middle;
    }
    const int start = call.starts[row], end = call.starts[row + 1], context = call.contexts[row];
    Tile tile{};
    tile.row = row;
    tile.kv_head = item % call.kv_heads;
    tile.first = start + (index - (start / call.tile_tokens + row)) * call.tile_tokens;
    if (end - start <= call.shorter || context <= 0 || tile.first >= end)
        return tile;
    tile.tokens = min(call.tile_tokens, end - tile.first);
    tile.position = context - (end - tile.first);
    tile.last = tile.position + tile.tokens;
    const int oldest = call.window > 0 ? max(tile.position - call.window + 1, 0) : 0;
    tile.begin = oldest / kTileKeys * kTileKeys;
    return tile;
}

// The barriers of a buffer: the writer waits for `empty`, readers wait for `full`.
struct Buffer {
    uint64_t full, empty;
};

// Shared memory of a block. A tile has D / 64 pieces [128 rows, 64 columns], swizzled; a row of a
// piece is 128 bytes.
template <int kDim>
struct PrefillMemory {
    static constexpr int kPieces = kDim / kBoxColumns;
    static constexpr int kPieceBytes = kTileKeys * 2 * kBoxColumns;
    unsigned char queries[kPieces * kPieceBytes];
    unsigned char keys[kStages][kPieces * kPieceBytes];
    unsigned char values[kStages][kPieces * kPieceBytes];
    Buffer of_queries, of_keys[kStages], of_values[kStages];
};

// Shared memory of a block for an e4m3 cache. Keys and values are copied as bytes, D per key, and
// then converted to bfloat16 in `keys` and `values` of PrefillMemory.
template <int kDim>
struct NarrowMemory : PrefillMemory<kDim> {
    static constexpr int kBytes = kTileKeys * kDim;
    alignas(128) unsigned char narrow_keys[kStages][kBytes];
    unsigned char narrow_values[kStages][kBytes];
    Buffer of_narrow_keys[kStages], of_narrow_values[kStages];
};

template <int kDim, class Cached>
struct MemoryOf {
    using Type = PrefillMemory<kDim>;
};
template <int kDim>
struct MemoryOf<kDim, E4m3> {
    using Type = NarrowMemory<kDim>;
};

constexpr int kSwizzleBytes = 1024; // alignment of a tile in memory

// The position of a warp in a ring of buffers: the buffer `stage`, and the parity of the phase of
// its barriers. `next` advances to the next buffer.
struct PipelineState {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
        phase ^= static_cast<uint32_t>(++stage == kStages);
        stage %= kStages;
    }
};

} // namespace penstock::cuda
