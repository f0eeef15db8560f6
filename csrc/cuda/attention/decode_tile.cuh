// Sixteen keys under a tile of queries: scores, weights, outputs, in registers. Layouts:
// decode_attention.cuh.
#pragma once

#include "cuda/attention/decode_attention.h"

namespace penstock::cuda {

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

// What a warp needs of a unit beside its keys.
template <int kDim>
struct Queries {
    uint32_t words[kDim / 32][2][4];
    int position[2]; // of queries g and g + 8
    float scale;     // of their scores
};

template <int kDim>
__device__ __forceinline__ void load_unit(Queries<kDim>& queries, const DecodeAttention& call,
                                          const Unit& unit, int lane) {
    const int g = lane / 4, t = lane % 4;
    const int shared = call.q_heads / call.kv_heads;
    load_queries<kDim>(queries.words, call, unit, unit.tokens * shared, g, t);
    const int own = unit.context - unit.tokens;
    queries.position[0] = own + g / shared;
    queries.position[1] = own + (g + 8) / shared;
    queries.scale =
        call.key_scales ? call.log2_scale * call.key_scales[unit.kv_head] : call.log2_scale;
}

// The four lanes of a query held its keys apart.
template <int kDim>
__device__ __forceinline__ void join_masses(Partial<kDim>& partial) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        partial.mass[half] += __shfl_xor_sync(kWholeWarp, partial.mass[half], 1);
        partial.mass[half] += __shfl_xor_sync(kWholeWarp, partial.mass[half], 2);
    }
}

} // namespace penstock::cuda
