// Head norms, rotary embedding and the write to the paged KV cache. Included by the ISA files.
//
//   rope_cache       tensors:  0 qkv [T, (H + 2 K) * D] float32;
//                              1 rope [positions, rotated] float32 (cosines, then sines);
//                              2 positions [T]; 3 slots [T] (int32 each);
//                              4 keys [B, K, D, P]; 5 values [B, K, P, D] (both float16 or
//                              float32), written at slots; 6 out [T, H * D] float32
//                    integers: H, K, D
//   norm_rope_cache  as rope_cache, with 7 q_norm [D]; 8 k_norm [D] float32: RMSNorm of each head
//                    before the rotation
//                    reals:    eps
//
//   int8_rope_cache, int8_norm_rope_cache  as those without int8, with int8 keys [B, K, D + 4, P]
//                    and values [B, K, P, D + 4]: for each KV block and head [D / 2, P, 2] keys, or
//                    [P / 2, D, 2] values, and P float32 scales. A number is its int8 times the
//                    scale of its token and KV head
//
//   latent_cache     tensors:  0 kv [T, C + S] float32; 1 norm_weight [C] float32;
//                              2 rope [positions, S]; 3 positions [T]; 4 slots [T];
//                              5 keys [B, 1, C + S, P]; 6 values [B, 1, P, C], both written at
//                              slots: the first C elements normalized, as key and as value, and
//                              the others rotated, as key
//                    reals:    eps
//
// rotated <= D is even. Component i forms a pair with component i + rotated / 2; components past
// `rotated` are copied. The slots of one call are distinct. Float16 is rounded half to even. Rows
// may be strided.
#pragma once

#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace rope {

// Returns the tokens per task. Prefill tasks have runs of 16 tokens, so that two tasks seldom write
// to one cache line; few tokens are divided into small tasks, so that every thread gets some.
PENSTOCK_INLINE int64_t tokens_per_task(int64_t tokens) {
    return tokens >= 64 ? 16 : 4;
}

int64_t tasks(const Arguments& call, int) {
    const int64_t tokens = call.tensor[0].shape[0], each = tokens_per_task(tokens);
    return ceil_div(tokens, each);
}

// Returns the bytes of two padded rows of a head.
size_t workspace_bytes(const Arguments& call) {
    return 2 * static_cast<size_t>(call.integer[2] + kLanes) * sizeof(float);
}

// Computes to = x / sqrt(mean(x^2) + eps) * weight.
PENSTOCK_INLINE void normalise(const float* x, const float* weight, float eps, int64_t dim,
                               float* to) {
    F32 squares = broadcast(0.0f);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const F32 v = load_lanes(x + i, lanes_from(i, dim));
        squares = fma(v, v, squares);
    }
    const float mean = reduce_add(squares) / static_cast<float>(dim);
    const F32 inverse = broadcast(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        store_lanes(to + i, load_lanes(x + i, n) * inverse * load_lanes(weight + i, n), n);
    }
}

PENSTOCK_INLINE void rotate_lanes(const float* x, const float* cosine, int64_t half, int64_t i,
                                  int n, float* to) {
    const F32 a = load_lanes(x + i, n), b = load_lanes(x + half + i, n);
    const F32 c = load_lanes(cosine + i, n), s = load_lanes(cosine + half + i, n);
    store_lanes(to + i, fnma(b, s, a * c), n);
    store_lanes(to + half + i, fma(a, s, b * c), n);
}

// Rotates one head of a token; components past `rotated` are copied. `to` must not be `x`.
PENSTOCK_INLINE void rotate(const float* x, const float* cosine, int64_t rotated, int64_t dim,
                            float* to) {
    const int64_t half = rotated / 2;
    for (int64_t i = 0; i < half; i += kLanes) {
        rotate_lanes(x, cosine, half, i, lanes_from(i, half), to);
    }
    for (int64_t i = rotated; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        store_lanes(to + i, load_lanes(x + i, n), n);
    }
}

// Writes one key: component d to to + d * P.
PENSTOCK_INLINE void write_key(const float* from, float* to, int64_t stride, int64_t dim) {
    for (int64_t d = 0; d < dim; ++d)
        to[d * stride] = from[d];
}
PENSTOCK_INLINE void write_key(const float* from, uint16_t* to, int64_t stride, int64_t dim) {
    uint16_t narrow[kLanes];
    for (int64_t d = 0; d < dim; d += kLanes) {
        const int n = lanes_from(d, dim);
        store_f16(narrow, load_lanes(from + d, n));
        for (int k = 0; k < n; ++k)
            to[(d + k) * stride] = narrow[k];
    }
}

PENSTOCK_INLINE void write_value(const float* from, float* to, int64_t dim) {
    for (int64_t d = 0; d < dim; d += kLanes) {
        const int n = lanes_from(d, dim);
        store_lanes(to + d, load_lanes(from + d, n), n);
    }
}
PENSTOCK_INLINE void write_value(const float* from, uint16_t* to, int64_t dim) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes)
        store_f16(to + d, load(from + d));
    if (d < dim) {
        const int n = lanes_from(d, dim);
        store_f16(to + d, load_lanes(from + d, n), n);
    }
}

// Rounds a head to int8, half to even, and returns the scale: a 127th of the largest number. The
// scale is 0 if the largest number is so small that its inverse may not be finite, and NaN if a
// number is not finite. `to` is written in whole vectors.
inline float round_head(const float* from, int64_t dim, int8_t* to) {
    constexpr float kMost = 127.0f, kLeastPeak = 1e-30f;
    F32 top = broadcast(0.0f), broken = broadcast(0.0f);
    for (int64_t d = 0; d < dim; d += kLanes) {
        const F32 x = load_lanes(from + d, lanes_from(d, dim));
        top = max(abs(x), top);
        broken = broken + (x - x);
    }
    const float peak = reduce_max(top);
    const bool usable = peak > kLeastPeak;
    const F32 factor = broadcast(usable ? kMost / peak : 0.0f);
    for (int64_t d = 0; d < dim; d += kLanes) {
        const F32 x = load_lanes(from + d, lanes_from(d, dim)) * factor;
        store_i8(to + d, to_int(min(x, broadcast(kMost))));
    }
    return (usable ? peak / kMost : 0.0f) + reduce_add(broken);
}

// Writes one head of a token to an 8-bit cache, in pairs of a key's components, or of two values.
struct Int8Slot {
    const Arguments& call;
    int64_t block, offset;
    int8_t* rounded; // scratch: a padded head

    void write_key(const float* from, int64_t head, int64_t dim) const {
        const TensorView& keys = call.tensor[4];
        const int64_t size = keys.shape[3];
        int8_t* to = keys.row<int8_t>(block) + head * keys.stride[1];
        write_scale(to + size * dim, round_head(from, dim, rounded));
        to += 2 * offset;
        for (int64_t d = 0; d < dim; d += 2, to += 2 * size) {
            to[0] = rounded[d];
            to[1] = rounded[d + 1];
        }
    }
    void write_value(const float* from, int64_t head, int64_t dim) const {
        const TensorView& values = call.tensor[5];
        int8_t* to = values.row<int8_t>(block) + head * values.stride[1];
        write_scale(to + values.shape[2] * dim, round_head(from, dim, rounded));
        to += offset / 2 * 2 * dim + offset % 2;
        for (int64_t d = 0; d < dim; ++d)
            to[2 * d] = rounded[d];
    }
    void write_scale(int8_t* scales, float scale) const {
        std::memcpy(scales + offset * static_cast<int64_t>(sizeof scale), &scale, sizeof scale);
    }
};

// Processes one token. `Element` is the cache's element type; float16 is uint16_t.
template <class Element>
void run_token(const Arguments& call, int64_t token, float* scratch) {
    const TensorView &keys = call.tensor[4], &values = call.tensor[5];
    const int64_t heads = call.integer[0], kv_heads = call.integer[1], dim = call.integer[2];
    const int64_t rotated = call.tensor[1].shape[1], block_size = keys.shape[3];
    const int32_t position = call.tensor[2].row<int32_t>(0)[token];
    const int32_t slot = call.tensor[3].row<int32_t>(0)[token];
    const int64_t block = slot / block_size, offset = slot % block_size;
    const float* cosine = call.tensor[1].row<float>(position);
    const float* from = call.tensor[0].row<float>(token);
    const auto* q_norm = static_cast<const float*>(call.tensor[7].data);
    const auto* k_norm = static_cast<const float*>(call.tensor[8].data);
    float *normal = scratch, *turned = scratch + dim + kLanes;
    const auto turn = [&](const float* x, const float* norm, float* to) {
        if (norm) {
            normalise(x, norm, call.real[0], dim, normal);
            x = normal;
        }
        rotate(x, cosine, rotated, dim, to);
    };
    float* out = call.tensor[6].row<float>(token);
    for (int64_t h = 0; h < heads; ++h)
        turn(from + h * dim, q_norm, out + h * dim);
    from += heads * dim;
    for (int64_t h = 0; h < kv_heads; ++h) {
        turn(from + h * dim, k_norm, turned);
        if constexpr (sizeof(Element) == 1) {
            const Int8Slot to{call, block, offset, reinterpret_cast<int8_t*>(normal)};
            to.write_key(turned, h, dim);
            to.write_value(from + (kv_heads + h) * dim, h, dim);
        } else {
            write_key(turned, keys.row<Element>(block) + h * keys.stride[1] + offset,
                      keys.stride[2], dim);
            write_value(
                from + (kv_heads + h) * dim,
                values.row<Element>(block) + h * values.stride[1] + offset * values.stride[2], dim);
        }
    }
}

void run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const int64_t tokens = call.tensor[0].shape[0], each = tokens_per_task(tokens);
    auto* scratch = static_cast<float*>(workspace.data);
    for (int64_t token = task * each; token < (task + 1) * each && token < tokens; ++token) {
        switch (call.tensor[4].dtype) {
        case DType::i8: run_token<int8_t>(call, token, scratch); break;
        case DType::f16: run_token<uint16_t>(call, token, scratch); break;
        default: run_token<float>(call, token, scratch);
        }
    }
}

// Processes one token of latent_cache.
template <class Element>
void run_latent_token(const Arguments& call, int64_t token, float* scratch) {
    const TensorView &keys = call.tensor[5], &values = call.tensor[6];
    const int64_t latent = call.tensor[1].shape[0], rotated = call.tensor[2].shape[1];
    const int64_t block_size = keys.shape[3];
    const int32_t position = call.tensor[3].row<int32_t>(0)[token];
    const int32_t slot = call.tensor[4].row<int32_t>(0)[token];
    const int64_t block = slot / block_size, offset = slot % block_size;
    const float* from = call.tensor[0].row<float>(token);
    const float* weight = call.tensor[1].row<float>(0);
    normalise(from, weight, call.real[0], latent, scratch);
    rotate(from + latent, call.tensor[2].row<float>(position), rotated, rotated, scratch + latent);
    write_key(scratch, keys.row<Element>(block) + offset, keys.stride[2], latent + rotated);
    write_value(scratch, values.row<Element>(block) + offset * values.stride[2], latent);
}

size_t latent_workspace_bytes(const Arguments& call) {
    return static_cast<size_t>(call.tensor[0].shape[1] + kLanes) * sizeof(float);
}

void run_latent(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const int64_t tokens = call.tensor[0].shape[0], each = tokens_per_task(tokens);
    auto* scratch = static_cast<float*>(workspace.data);
    for (int64_t token = task * each; token < (task + 1) * each && token < tokens; ++token) {
        if (call.tensor[5].dtype == DType::f16) {
            run_latent_token<uint16_t>(call, token, scratch);
        } else {
            run_latent_token<float>(call, token, scratch);
        }
    }
}

} // namespace rope

constexpr Kernel kRopeKernels[] = {
    {"rope_cache", one_phase, rope::tasks, rope::run, rope::workspace_bytes, true},
    {"norm_rope_cache", one_phase, rope::tasks, rope::run, rope::workspace_bytes, true},
    {"int8_rope_cache", one_phase, rope::tasks, rope::run, rope::workspace_bytes, true},
    {"int8_norm_rope_cache", one_phase, rope::tasks, rope::run, rope::workspace_bytes, true},
    {"latent_cache", one_phase, rope::tasks, rope::run_latent, rope::latent_workspace_bytes, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
