// Head norm, rotary embedding and KV cache write in one pass: one warp per token and head of q, k
// or v.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

struct RopeCache {
    Bf16* out;  // [T, H * D]
    void* keys; // per block and KV head [P, D]; bfloat16, or e4m3 with a scale per KV head
    void* values;
    const float* key_scales;
    const float* value_scales;
    const Bf16* qkv;   // [T, (H + 2 K) * D]
    const float* rope; // [positions, rotated]: cosines, then sines
    const int32_t* positions;
    const int32_t* slots;
    const float* q_weight; // [D], or null: no head norm
    const float* k_weight;
    float eps;
    int q_heads, kv_heads, dim, rotated, block_size;
    int64_t key_stride, value_stride;
};

constexpr int kWarpsOfRope = 4;
constexpr int kMaxDim = 256;
// A lane holds pairs of adjacent elements, at distances of 64 elements: up to kMaxPairs pairs of
// each rotated half, and up to kMaxRest pairs of the elements that are not rotated.
constexpr int kMaxPairs = kMaxDim / 2 / (2 * kWarp);
constexpr int kMaxRest = kMaxDim / (2 * kWarp);

__device__ __forceinline__ uint32_t load_pair(const Bf16* address) {
    return *reinterpret_cast<const uint32_t*>(address);
}

__device__ __forceinline__ void store_pair(Bf16* address, float low, float high) {
    *reinterpret_cast<uint32_t*>(address) = pack_bf16(low, high);
}

__device__ __forceinline__ void store_pair(E4m3* address, float low, float high) {
    const uint32_t pair = to_e4m3(low).bits | to_e4m3(high).bits << 8;
    *reinterpret_cast<uint16_t*>(address) = static_cast<uint16_t>(pair);
}

// Destination of one head of a token: the result for q, or the KV cache for k and v, divided by the
// scale of the head.
template <class Cached>
struct Target {
    Bf16* result;
    Cached* cached;
    float scale;
    __device__ __forceinline__ void store(int at, float low, float high) const {
        if (result != nullptr)
            store_pair(result + at, low, high);
        else
            store_pair(cached + at, low / scale, high / scale);
    }
};

// Returns the destination of head `head` (q, k or v) of a token. All pointers are null for k and v
// of a token without a slot.
template <class Cached>
__device__ __forceinline__ Target<Cached> target(const RopeCache& call, int64_t token, int head) {
    if (head < call.q_heads)
        return {call.out + (token * call.q_heads + head) * call.dim, nullptr, 1.0f};
    const int slot = call.slots[token];
    if (slot < 0)
        return {nullptr, nullptr, 1.0f};
    const int block = slot / call.block_size, offset = slot % call.block_size;
    const bool is_key = head < call.q_heads + call.kv_heads;
    const int64_t kv_head = head - call.q_heads - (is_key ? 0 : call.kv_heads);
    const int64_t row = (kv_head * call.block_size + offset) * call.dim;
    const float* const scales = is_key ? call.key_scales : call.value_scales;
    Cached* const part = static_cast<Cached*>(is_key ? call.keys : call.values);
    const int64_t stride = is_key ? call.key_stride : call.value_stride;
    return {nullptr, part + block * stride + row, scales == nullptr ? 1.0f : scales[kv_head]};
}

template <class Cached>
__global__ void rope_cache_kernel(RopeCache call) {
    let_later_start();
    wait_for_earlier();
    const int lane = threadIdx.x % kWarp;
    const int head = blockIdx.y * kWarpsOfRope + threadIdx.x / kWarp;
    const int64_t token = blockIdx.x;
    const int heads = call.q_heads + 2 * call.kv_heads;
    if (head >= heads)
        return;
    const Bf16* source = call.qkv + (token * heads + head) * call.dim;
    const Target<Cached> to = target<Cached>(call, token, head);
    if (to.result == nullptr && to.cached == nullptr)
        return;
    const bool turns = head < call.q_heads + call.kv_heads;
    const int rotated = turns ? call.rotated : 0, half = rotated / 2;

    float first[kMaxPairs][2], second[kMaxPairs][2], rest[kMaxRest][2];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
        const int at = (i * kWarp + lane) * 2;
        if (at >= half)
            continue;
        const uint32_t low = load_pair(source + at), high = load_pair(source + half + at);
        first[i][0] = low_half(low), first[i][1] = high_half(low);
        second[i][0] = low_half(high), second[i][1] = high_half(high);
#pragma unroll
        for (int j = 0; j < 2; ++j)
            squares += first[i][j] * first[i][j] + second[i][j] * second[i][j];
    }
#pragma unroll
    for (int i = 0; i < kMaxRest; ++i) {
        const int at = rotated + (i * kWarp + lane) * 2;
        if (at >= call.dim)
            continue;
        const uint32_t both = load_pair(source + at);
        rest[i][0] = low_half(both), rest[i][1] = high_half(both);
        squares += rest[i][0] * rest[i][0] + rest[i][1] * rest[i][1];
    }

    const float* weight = head < call.q_heads ? call.q_weight : call.k_weight;
    const bool norms = turns && weight != nullptr;
    float scale = 1.0f;
    if (norms)
        scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(call.dim) + call.eps);
    const float* angles = call.rope + static_cast<int64_t>(call.positions[token]) * call.rotated;
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
        const int at = (i * kWarp + lane) * 2;
        if (at >= half)
            continue;
        float low[2], high[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float x = first[i][j] * (norms ? scale * weight[at + j] : 1.0f);
            const float y = second[i][j] * (norms ? scale * weight[half + at + j] : 1.0f);
            const float cosine = angles[at + j], sine = angles[half + at + j];
            low[j] = x * cosine - y * sine;
            high[j] = y * cosine + x * sine;
        }
        to.store(at, low[0], low[1]);
        to.store(half + at, high[0], high[1]);
    }
#pragma unroll
    for (int i = 0; i < kMaxRest; ++i) {
        const int at = rotated + (i * kWarp + lane) * 2;
        if (at >= call.dim)
            continue;
        const float low = norms ? scale * weight[at] : 1.0f;
        const float high = norms ? scale * weight[at + 1] : 1.0f;
        to.store(at, rest[i][0] * low, rest[i][1] * high);
    }
}

} // namespace penstock::cuda
