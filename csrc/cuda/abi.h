// The C ABI of the CUDA library. All pointers are device memory except `stream`, a cudaStream_t;
// activations are bfloat16, contiguous and aligned to 16 bytes. A function launches its kernel on
// the stream and returns 0, a CUDA error (see penstock_cuda_error), or -1 for extents that it does
// not support. No function allocates or waits. Any change of a signature or layout increments the
// version of the ABI.
#pragma once

#include <cstdint>

#define PENSTOCK_CUDA_ABI 8

#if defined(__GNUC__)
#define PENSTOCK_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define PENSTOCK_EXPORT extern "C"
#endif

PENSTOCK_EXPORT int penstock_cuda_abi();
// Returns the version of the CUDA runtime that is linked in, 1000 * major + 10 * minor; 0 if
// kernels are emulated.
PENSTOCK_EXPORT int penstock_cuda_runtime();
PENSTOCK_EXPORT const char* penstock_cuda_error(int code);

// Selects a kernel variant for all later launches of the process. `setting`, `value`: see
// csrc/cuda/tuning.h. Returns -1 for an unknown setting or value, or if the current device has no
// code for the variant.
PENSTOCK_EXPORT int penstock_cuda_tune(int setting, int value);

// Computes out = rms_norm(s) * weight for s = x + residual, and writes s to `total`. If `residual`
// is null, s is x and `total` is not written. x, residual, total and out are [tokens, width],
// weight is [width] float32; width % 8 == 0.
PENSTOCK_EXPORT int penstock_cuda_rms_norm(void* out, void* total, const void* x,
                                           const void* residual, const float* weight, float eps,
                                           int tokens, int width, void* stream);

// Normalizes q and k (unless the weights [dim] float32 are null), rotates them, and stores k and v.
// qkv [tokens, (H + 2 K) * dim], out [tokens, H * dim], rope [positions, rotated] float32; a token
// with a negative slot is not stored. Caches are bfloat16, or e4m3 with scales [kv_heads] (a value
// is the stored element times the scale of its head). Strides: elements from one KV block to the
// next. dim <= 256 and even, rotated % 4 == 0.
PENSTOCK_EXPORT int
penstock_cuda_rope_cache(void* out, void* keys, void* values, const void* qkv, const float* rope,
                         const int32_t* positions, const int32_t* slots, const float* q_weight,
                         const float* k_weight, const float* key_scales, const float* value_scales,
                         float eps, int tokens, int q_heads, int kv_heads, int dim, int rotated,
                         int block_size, int64_t key_stride, int64_t value_stride, void* stream);

// Computes decode attention in one persistent launch over the work units that
// kernels/triton/paged_attention/decode_work.py lists; see
// csrc/cuda/attention/decode_attention.cuh. dim 64 or 128; `lanes` (query heads per KV head, times
// the maximum tokens of a row) up to 16; block_size a power of two >= 16. `chunk`: keys of the
// smallest split, a power of two >= 64. Caches: see penstock_cuda_rope_cache. `sinks` [q_heads]:
// see `Ops.attention`; null if there are none.
PENSTOCK_EXPORT int penstock_cuda_decode_attention(
    void* out, const void* q, const void* keys, const void* values, const float* key_scales,
    const float* value_scales, const float* sinks, const int32_t* starts, const int32_t* contexts,
    const int32_t* tables, const int32_t* units, const int32_t* unit_count, float* parts,
    float* stats, int32_t* arrived, int table_width, int64_t key_stride, int64_t value_stride,
    float log2_scale, int window, int lanes, int q_heads, int kv_heads, int dim, int block_size,
    int chunk, int multiprocessors, void* stream);

// Computes attention for chunks of more than `shorter` tokens, on compute capability 9.0 only; see
// csrc/cuda/attention/prefill_attention.cuh. q and out are [tokens, H * dim]; caches and sinks as
// in penstock_cuda_decode_attention. Caches have `blocks` KV blocks with strides that are multiples
// of block_size * dim; dim 64 or 128, block_size a power of two >= 8, at most 128 query heads per
// KV head.
PENSTOCK_EXPORT int penstock_cuda_prefill_attention(
    void* out, const void* q, const void* keys, const void* values, const float* key_scales,
    const float* value_scales, const float* sinks, const int32_t* starts, const int32_t* contexts,
    const int32_t* tables, int rows, int tokens, int blocks, int table_width, int64_t key_stride,
    int64_t value_stride, float log2_scale, int window, int shorter, int q_heads, int kv_heads,
    int dim, int block_size, int programs, void* stream);

// Computes out [tokens, rows] = x [tokens, width] weight [rows, width]^T + bias [rows] float32
// (null: no bias). `out_float32`: out is float32, otherwise bfloat16. tokens <= 64, width % 32 ==
// 0.
PENSTOCK_EXPORT int penstock_cuda_linear(void* out, const void* x, const void* weight,
                                         const float* bias, int tokens, int rows, int width,
                                         int out_float32, void* stream);

// Computes the product of penstock_cuda_linear with e4m3 weights, whose codes [rows, width] are
// widened to bfloat16 in registers. The float32 scale of row r and columns 128 c to 128 c + 127 is
// scale[c * scale_stride + r / scale_rows] (scale_stride 0: one scale per row). tokens <= 16, width
// % 128 == 0.
PENSTOCK_EXPORT int penstock_cuda_linear_float8(void* out, const void* x, const void* codes,
                                                const float* scale, const float* bias, int tokens,
                                                int rows, int width, int scale_rows,
                                                int scale_stride, int out_float32, void* stream);

// Computes the product of penstock_cuda_linear or penstock_cuda_linear_float8 for up to 128 tokens.
// Weights [rows, width] are bfloat16 if `scale` is null (width % 64 == 0), otherwise e4m3 (width %
// 128 == 0). `blocks`: number of thread blocks; each gets an equal share of the work, and the
// number determines the order of sums. `parts` has room for blocks * 2 * 128 * (tokens rounded up
// to 16, 32, 64 or 128) floats; `arrived` [ceil(rows / 128)] is zero before and after the call.
PENSTOCK_EXPORT int penstock_cuda_staged_linear(void* out, const void* x, const void* weight,
                                                const float* scale, const float* bias, float* parts,
                                                int32_t* arrived, int tokens, int rows, int width,
                                                int scale_rows, int scale_stride, int blocks,
                                                int out_float32, void* stream);

// Samples tokens [rows] from logits [rows, vocabulary] float32; -1 if a row cannot be sampled. See
// kernels/sampler_inputs.py. `seeds` and `positions` hold the bits of uint64.
PENSTOCK_EXPORT int penstock_cuda_sample(int32_t* out, const float* logits,
                                         const float* temperatures, const int32_t* top_ks,
                                         const float* top_ps, const float* min_ps,
                                         const int64_t* seeds, const int64_t* positions, int rows,
                                         int vocabulary, void* stream);
