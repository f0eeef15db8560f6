// How the keys of a sequence are cut: the same in kernels/triton/paged_attention/attention_tile.py,
// which lists the chunks, and here.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace penstock::cuda {

constexpr int kWholeChunk = 256; // keys from which on a chunk is worth a program
constexpr int kFewChunks = 16;   // of smaller ones a context has no more
constexpr int kMostChunks = 64;

// Keys of a chunk: `least`, doubled until kMostChunks hold the context, or kFewChunks of small
// ones.
__host__ __device__ inline int chunk_tokens(int context, int least) {
    int64_t size = least;
    while (size * (size < kWholeChunk ? kFewChunks : kMostChunks) < context)
        size *= 2;
    return static_cast<int>(size);
}

// The chunks of one row that are attended to: `oldest` is the first key that any of its tokens
// sees, `count` how many chunks hold the keys from there on.
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
