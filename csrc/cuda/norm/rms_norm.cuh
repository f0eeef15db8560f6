// RMSNorm, alone and fused with a residual addition: one block per row, which it keeps in
// registers.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

// Returns the sum over the block, added in an order that depends only on the block's size.
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float of_warp[kWarp];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int warps = blockDim.x / kWarp;
    value = warp_sum(value);
    if (lane == 0)
        of_warp[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? of_warp[lane] : 0.0f);
}

constexpr int kMaxNormThreads = 1024;

// Normalizes one row per block. A thread holds kVectors vectors of eight elements, blockDim.x * 8
// elements from each other. `residual`: null if there is none.
template <int kVectors>
__global__ void __launch_bounds__(kMaxNormThreads)
    rms_norm_kernel(Bf16* out, Bf16* total, const Bf16* x, const Bf16* residual,
                    const float* weight, float eps, int width) {
    let_later_start();
    wait_for_earlier();
    const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
    float values[kVectors][8];
    float squares = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
        const int column = (v * blockDim.x + threadIdx.x) * 8;
        if (column >= width)
            continue;
        unpack(load16(x + row + column), values[v]);
        if (residual != nullptr) {
            float other[8];
            unpack(load16(residual + row + column), other);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                values[v][i] += other[i];
            store16(total + row + column, pack(values[v]));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            squares += values[v][i] * values[v][i];
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(width) + eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
        const int column = (v * blockDim.x + threadIdx.x) * 8;
        if (column >= width)
            continue;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            values[v][i] *= scale * weight[column + i];
        store16(out + row + column, pack(values[v]));
    }
}

} // namespace penstock::cuda
