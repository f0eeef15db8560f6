// Divides the keys of a sequence into chunks, in the same way as
// kernels/triton/paged_attention/attention_tile.py, which lists the chunks.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace penstock::cuda {

constexpr int kWholeChunk = 256; // number of keys from which on a chunk is worth a program
constexpr int kFewChunks = 16;   // a context has at most this many smaller chunks
constexpr int kMaxChunks = 64;

// Keys per chunk: `least`, doubled until at most kMaxChunks chunks (kFewChunks if they are small)
// hold the context.
__host__ __device__ inline int chunk_tokens(int context, int least) {
    int64_t size = least;
    while (size * (size < kWholeChunk ? kFewChunks : kMaxChunks) < context)
        size *= 2;
    return static_cast<int>(size);
}

// The visible chunks of one row: `oldest` is the first key that any of its tokens sees, `count` the
// number of chunks from there on.
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
