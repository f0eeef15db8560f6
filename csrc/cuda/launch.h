// Starting a kernel on a stream; what every launcher returns.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

// Every launcher returns 0, or the CUDA error of the launch. An extent that a kernel does not serve
// is a mistake of the caller: kRefused.
constexpr int kRefused = -1;

#ifdef PENSTOCK_EMULATED
template <class Kernel, class... Arguments>
int launch(Kernel kernel, dim3 grid, dim3 block, void*, Arguments... arguments) {
    emulated::run_grid(grid, block, 0, [&] { kernel(arguments...); });
    return 0;
}

template <class Kernel, class... Arguments>
int launch_with_memory(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, void*,
                       Arguments... arguments) {
    emulated::run_grid(grid, block, shared_bytes, [&] { kernel(arguments...); });
    return 0;
}
#else
template <class Kernel, class... Arguments>
int launch(Kernel kernel, dim3 grid, dim3 block, void* stream, Arguments... arguments) {
    if (grid.x == 0 || grid.y == 0)
        return 0;
    kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
    return static_cast<int>(cudaGetLastError());
}

// With `shared_bytes` of a block's memory, more than a kernel has unasked.
template <class Kernel, class... Arguments>
int launch_with_memory(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, void* stream,
                       Arguments... arguments) {
    if (grid.x == 0 || grid.y == 0)
        return 0;
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (status != cudaSuccess)
        return static_cast<int>(status);
    kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(arguments...);
    return static_cast<int>(cudaGetLastError());
}
#endif

inline unsigned ceil_div(int64_t number, int64_t divisor) {
    return static_cast<unsigned>((number + divisor - 1) / divisor);
}

} // namespace penstock::cuda
