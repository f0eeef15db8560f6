// Products of weight fragments with tokens, shared by the kernels of linear layers.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

constexpr int kColumns = 8;          // tokens per tensor-core product
constexpr int kColumnsOfScale = 128; // columns of 8-bit weights that share a scale

// Adds two products of 16 rows of weights with each tile of tokens to `sums`. A lane's `upper` (row
// g) and `lower` (row g + 8) hold 8 elements each: the low words belong to the first product, the
// high words to the second.
template <int kTiles>
__device__ __forceinline__ void multiply_chunk(float (&sums)[kTiles][4], const Words4& upper,
                                               const Words4& lower,
                                               const Words4 (&tokens)[kTiles]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const uint32_t a[4] = {upper.word[2 * step], lower.word[2 * step], upper.word[2 * step + 1],
                               lower.word[2 * step + 1]};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const uint32_t b[2] = {tokens[tile].word[2 * step], tokens[tile].word[2 * step + 1]};
            multiply_add(sums[tile], a, b);
        }
    }
}

// Stores an element of a result as float32 or bfloat16.
__device__ __forceinline__ void store_result(void* out, int64_t place, float value, bool to_float) {
    if (to_float) {
        static_cast<float*>(out)[place] = value;
    } else {
        static_cast<Bf16*>(out)[place] = to_bf16(value);
    }
}

// Loads a float that is not written during the launch if `wanted`; otherwise leaves `value`
// unchanged. The compiler does not move the load, so that it is in flight while other values are
// used.
__device__ __forceinline__ void stream_float_where(bool wanted, float& value,
                                                   const float* address) {
#ifdef PENSTOCK_EMULATED
    if (wanted)
        value = *address;
#else
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.b32 wanted, %2, 0;\n"
                 "@wanted ld.global.nc.f32 %0, [%1];\n"
                 "}"
                 : "+f"(value)
                 : "l"(address), "r"(static_cast<int>(wanted)));
#endif
}

// Adds one to `counter` for this block and returns the count before. One thread of the block calls
// this after a barrier; after a further barrier, all data that the blocks counted before wrote can
// be read, bypassing L1.
__device__ __forceinline__ int32_t count_in(int32_t* counter) {
#ifdef PENSTOCK_EMULATED
    return atomicAdd(counter, 1);
#else
    int32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
#endif
}

// Widens the first or the last eight of 16 codes to bfloat16.
__device__ __forceinline__ Words4 widen_half(const Words4& codes, int half) {
    const uint32_t bytes[2] = {codes.word[2 * half], codes.word[2 * half + 1]};
    return widen(bytes);
}

} // namespace penstock::cuda
