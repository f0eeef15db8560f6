// What the roles of the prompt attention kernel share: the call, its tiles, its shared memory.
#pragma once

#include "cuda/hopper.h"

namespace penstock::cuda {

struct PrefillAttention {
    Bf16* out;
    const float* key_scales; // of each KV head, where the cache is of e4m3
    const float* value_scales;
    const float* sinks; // [H], or null
    const int32_t* starts;
    const int32_t* contexts;
    const int32_t* tables;
    float log2_scale;
    int rows, table_width, blocks, window, q_heads, kv_heads;
    int shorter;     // chunks of at most so many tokens are another kernel's
    int tile_tokens; // tokens of a tile of queries
    int tiles;       // that any chunks of so many tokens can have, for each KV head
    int block_shift; // a block of the cache has 1 << block_shift tokens
};

// q as [1, T, H, D], the caches as [B, K, P, D].
struct PrefillMaps {
    TensorMap queries, keys, values;
};

constexpr int kQueryRows = 128; // of a tile: two groups of 64
constexpr int kTileKeys = 128;  // of a tile, beginning at a multiple of it
constexpr int kStages = 2;
constexpr int kPrefillThreads = 3 * kGroup;
constexpr int kReaderWarps = 2 * kGroup / kWarp;
constexpr int kWideners = 3 * kWarp; // threads beside those of the warp that copies

// Queries of neighbouring tokens of one chunk and one KV head, and the keys they see.
struct Tile {
    int row, kv_head, first, tokens; // first: of all tokens of the step
    int position;                    // of the first token in its sequence
    int begin, last;                 // keys: begins a tile; the first that no token sees
};

// The tile of a work item; without tokens where there is none. The longest come first. Chunk r may
// have its tiles from starts[r] / tile_tokens + r on, which leaves room for every partial one.
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

// Barriers of a buffer: the writer waits for `empty`, a reader for `full`.
struct Buffer {
    uint64_t full, empty;
};

// Shared memory. A tile lies as D / 64 pieces of [128 rows, 64], each row 128 bytes, swizzled.
template <int kDim>
struct PrefillMemory {
    static constexpr int kPieces = kDim / kBoxColumns;
    static constexpr int kPieceBytes = kTileKeys * 2 * kBoxColumns;
    unsigned char queries[kPieces * kPieceBytes];
    unsigned char keys[kStages][kPieces * kPieceBytes];
    unsigned char values[kStages][kPieces * kPieceBytes];
    Buffer of_queries, of_keys[kStages], of_values[kStages];
};

// With a cache of e4m3: bytes as they come, a row of D a key, which are widened to the pieces
// above.
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

constexpr int kSwizzleBytes = 1024; // what the memory of a tile is aligned to

// Which buffer of a ring is next, and the phase of its barriers.
struct Turn {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
        phase ^= static_cast<uint32_t>(++stage == kStages);
        stage %= kStages;
    }
};

} // namespace penstock::cuda
