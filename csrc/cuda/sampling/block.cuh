// Block-wide primitives of the sampler: sums, maxima, a sort in shared memory.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / kWarp;

// Combines the values of all threads and returns the result in every thread; `of_warp` may be
// reused afterwards.
template <class T, class Combine>
__device__ __forceinline__ T block_combine(T value, T (&of_warp)[kSampleWarps], Combine combine) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
        value = combine(value, __shfl_xor_sync(kWholeWarp, value, mask));
    }
    if (lane == 0)
        of_warp[warp] = value;
    __syncthreads();
    value = of_warp[lane % kSampleWarps];
#pragma unroll
    for (int mask = kSampleWarps / 2; mask > 0; mask /= 2) {
        value = combine(value, __shfl_xor_sync(kWholeWarp, value, mask));
    }
    __syncthreads();
    return value;
}

template <class T>
__device__ __forceinline__ T block_sum_of(T value, T (&of_warp)[kSampleWarps]) {
    return block_combine(value, of_warp, [](T left, T right) { return left + right; });
}

template <class T>
__device__ __forceinline__ T block_highest(T value, T (&of_warp)[kSampleWarps]) {
    return block_combine(value, of_warp,
                         [](T left, T right) { return left > right ? left : right; });
}

// Sorts `values` in descending order by a bitonic network. `count`: a power of two.
template <class T>
__device__ __forceinline__ void sort_descending(T* values, int count) {
    for (int run = 2; run <= count; run *= 2) {
        for (int distance = run / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < count / 2; i += kSampleThreads) {
                const int low = i / distance * distance * 2 + i % distance, high = low + distance;
                const bool descends = (low & run) == 0;
                const T left = values[low], right = values[high];
                if ((left < right) == descends) {
                    values[low] = right;
                    values[high] = left;
                }
            }
        }
    }
    __syncthreads();
}

// Returns the inclusive prefix sum of `value` over the lanes of the warp.
__device__ __forceinline__ float warp_scan(float value) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int by = 1; by < kWarp; by *= 2) {
        const float before = __shfl_up_sync(kWholeWarp, value, by);
        if (lane >= by)
            value += before;
    }
    return value;
}

} // namespace penstock::cuda
