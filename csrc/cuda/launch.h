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
#else
template <class Kernel, class... Arguments>
int launch(Kernel kernel, dim3 grid, dim3 block, void* stream, Arguments... arguments) {
    if (grid.x == 0 || grid.y == 0)
        return 0;
    kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
    return static_cast<int>(cudaGetLastError());
}
#endif

inline unsigned ceil_div(int64_t number, int64_t divisor) {
    return static_cast<unsigned>((number + divisor - 1) / divisor);
}

} // namespace penstock::cuda
