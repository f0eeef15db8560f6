// Divides the keys of a sequence into chunks ("splits" in Triton), in the same way as
// kernels/triton/paged_attention/attention_tile.py.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace penstock::cuda {

constexpr int kWholeChunk = 256; // keys that make a chunk worth its own program
constexpr int kFewChunks = 16;   // most chunks of a context if they have fewer keys
constexpr int kMaxChunks = 64;

// Returns the keys per chunk: `least`, doubled until the context fits into kMaxChunks chunks
// (kFewChunks while a chunk has fewer than kWholeChunk keys).
__host__ __device__ inline int chunk_tokens(int context, int least) {
    int64_t size = least;
    while (size * (size < kWholeChunk ? kFewChunks : kMaxChunks) < context)
        size *= 2;
    return static_cast<int>(size);
}

// The chunks of keys that one row sees. `size`: keys per chunk. `oldest`: the first key that any
// token of the row sees. `count`: number of chunks from the chunk of `oldest` on.
struct Cut {
    int size, oldest, count;
};

__host__ __device__ inline Cut cut_of(int context, int tokens, int window, int least) {
    Cut cut{chunk_tokens(context, least), 0, 0};
    const int64_t hidden = static_cast<int64_t>(context) - tokens - window + 1;
    if (window > 0 && hidden > 0)
        cut.oldest = static_cast<int>(hidden);
    cut.count = (context + cut.size - 1) / cut.size - cut.oldest / cut.size;
    return cut;
}

} // namespace penstock::cuda
