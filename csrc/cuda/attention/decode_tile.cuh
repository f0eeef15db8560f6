// Attention of up to eight queries over a tile of sixteen keys, in the registers of one warp.
//
// Keys and values are loaded from memory straight into tensor-core fragments, 16 bytes per load:
// the order of the head dimension is free as long as both operands agree. With g = lane / 4 and t =
// lane % 4:
//   scores   S' = K Q': lane (g, t) holds dimensions 32 c + 8 t .. + 7 of keys g and g + 8, which
//            are rows g and g + 8 of two products per group c of 32 dimensions; columns are queries
//   outputs  O' = V' P': lane (g, t) holds dimensions 64 u + 8 g .. + 7 of keys 2t, 2t + 1, 2t + 8,
//            2t + 9; row g of product j of group u is dimension 64 u + 8 g + 2 j, row g + 8 is
//            the next dimension
// Lane (g, t) therefore holds scores and outputs of queries 2t and 2t + 1.
#pragma once

#include "cuda/attention/decode_attention.h"

namespace penstock::cuda {

// The type of eight elements in the cache's format.
template <class Cached>
struct PieceOf {
    using Type = Words4;
};
template <>
struct PieceOf<E4m3> {
    using Type = Words2;
};

template <int kDim, class Cached>
struct KeyTile {
    typename PieceOf<Cached>::Type words[2][kDim / 32]; // of keys g and g + 8
};

template <int kDim, class Cached>
struct ValueTile {
    typename PieceOf<Cached>::Type words[4][kDim / 64]; // of keys 2t, 2t + 1, 2t + 8, 2t + 9
};

// A group of eight queries as right operands; a lane holds query g.
template <int kDim>
struct QueryTile {
    uint32_t words[kDim / 32][2][2];
};

// Online softmax state of queries 2t and 2t + 1 (arXiv 2205.14135). `mass`: the softmax sum over
// this lane's keys only.
template <int kDim>
struct Partial {
    float top[2] = {-INFINITY, -INFINITY};
    float mass[2] = {0.0f, 0.0f};
    float outputs[kDim / 64][4][4] = {};
};

// The positions of keys that queries 2t and 2t + 1 see: from `oldest` to `newest`, inclusive.
struct Seen {
    int oldest[2], newest[2];
};

template <int kDim, class Cached>
__device__ __forceinline__ void load_keys(KeyTile<kDim, Cached>& keys, const Cached* from,
                                          int lane) {
    const Cached* const own = from + lane / 4 * kDim + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c)
            keys.words[half][c] = stream_raw(own + 8 * half * kDim + 32 * c);
    }
}

// Loads the first `count` of sixteen values, and zeros for the rest: an unwritten value may be NaN,
// which a weight of zero does not mask.
template <int kDim, class Cached>
__device__ __forceinline__ void load_values(ValueTile<kDim, Cached>& values, const Cached* from,
                                            int count, int lane) {
    const Cached* const own = from + lane / 4 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int key = lane % 4 * 2 + i % 2 + 8 * (i / 2);
#pragma unroll
        for (int u = 0; u < kDim / 64; ++u) {
            values.words[i][u] = {};
            if (key < count)
                values.words[i][u] = stream_raw(own + key * kDim + 64 * u);
        }
    }
}

template <int kDim, class Cached>
__device__ __forceinline__ void add_scores(float (&scores)[4], const KeyTile<kDim, Cached>& keys,
                                           const QueryTile<kDim>& queries) {
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        const Words4 upper = as_bf16(keys.words[0][c]), lower = as_bf16(keys.words[1][c]);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const uint32_t a[4] = {upper.word[2 * step], lower.word[2 * step],
                                   upper.word[2 * step + 1], lower.word[2 * step + 1]};
            multiply_add(scores, a, queries.words[c][step]);
        }
    }
}

// Scales the scores of keys base .. base + 15, masks keys that are not seen, and turns the scores
// into weights relative to the running maximum.
template <int kDim>
__device__ __forceinline__ void weigh(float (&scores)[4], Partial<kDim>& partial, float scale,
                                      int base, const Seen& seen, int g) {
    float rescales[2];
#pragma unroll
    for (int query = 0; query < 2; ++query) {
        float peak = partial.top[query];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = base + g + 8 * half;
            float& score = scores[2 * half + query];
            const bool shown = key >= seen.oldest[query] && key <= seen.newest[query];
            score = shown ? score * scale : -INFINITY;
            peak = fmaxf(peak, score);
        }
#pragma unroll
        for (int mask = 4; mask < kWarp; mask *= 2)
            peak = fmaxf(peak, __shfl_xor_sync(kWholeWarp, peak, mask));
        // A query that has seen no key keeps -inf, and zero is used instead: 2^(-inf - 0) = 0.
        const float reference = peak == -INFINITY ? 0.0f : peak;
        rescales[query] = power_of_two(partial.top[query] - reference);
        partial.mass[query] *= rescales[query];
        partial.top[query] = peak;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float& score = scores[2 * half + query];
            score = power_of_two(score - reference);
            partial.mass[query] += score;
        }
    }
#pragma unroll
    for (int u = 0; u < kDim / 64; ++u) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                partial.outputs[u][j][i] *= rescales[i % 2];
        }
    }
}

// Rearranges the weights [16 keys, 8 queries] as the right operand of outputs: lane (g, t) receives
// weights of query g.
__device__ __forceinline__ void transpose_weights(uint32_t (&b)[2], const float (&weights)[4],
                                                  int lane) {
    const int g = lane / 4, t = lane % 4;
    const uint32_t selector = g % 2 ? 0x7632 : 0x5410;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t own = pack_bf16(weights[2 * half], weights[2 * half + 1]);
        const uint32_t first = __shfl_sync(kWholeWarp, own, 8 * t + g / 2);
        const uint32_t second = __shfl_sync(kWholeWarp, own, 8 * t + 4 + g / 2);
        b[half] = permute_bytes(first, second, selector);
    }
}

template <int kDim, class Cached>
__device__ __forceinline__ void add_outputs(Partial<kDim>& partial, const float (&weights)[4],
                                            const ValueTile<kDim, Cached>& values, int lane) {
    uint32_t b[2];
    transpose_weights(b, weights, lane);
#pragma unroll
    for (int u = 0; u < kDim / 64; ++u) {
        Words4 keys[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            keys[i] = as_bf16(values.words[i][u]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t a[4] = {permute_bytes(keys[0].word[j], keys[1].word[j], 0x5410),
                                   permute_bytes(keys[0].word[j], keys[1].word[j], 0x7632),
                                   permute_bytes(keys[2].word[j], keys[3].word[j], 0x5410),
                                   permute_bytes(keys[2].word[j], keys[3].word[j], 0x7632)};
            multiply_add(partial.outputs[u][j], a, b);
        }
    }
}

} // namespace penstock::cuda
