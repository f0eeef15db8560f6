// Functions that launch a kernel on a stream.
#pragma once

#include "cuda/device.h"
#include "cuda/tuning.h"

namespace penstock::cuda {

// Launchers return 0, the CUDA error of the launch, or kRefused for extents that the kernel does
// not support, which is an error of the caller.
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

inline int shared_of_multiprocessor() {
    return 228 << 10;
}
#else
constexpr size_t kSharedUnasked = 48 << 10; // bytes per block; more needs a kernel attribute

// Launches a kernel with `shared_bytes` of dynamic shared memory per block. With
// `Setting::kOverlap` the kernel may start while the previous kernel on the stream is ending: all
// kernels here wait for its end (`wait_for_earlier`). Kernels do not overlap with other operations
// on the stream, nor with kernels that are launched by other libraries.
template <class Kernel, class... Arguments>
int start(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, void* stream,
          const Arguments&... arguments) {
    if (grid.x == 0 || grid.y == 0)
        return 0;
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &overlap;
    config.numAttrs = tuned(Setting::kOverlap) != 0 ? 1 : 0;
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
    if (status != cudaSuccess)
        cudaGetLastError(); // clears the error, which a later call would report again
    return static_cast<int>(status);
}

template <class Kernel, class... Arguments>
int launch(Kernel kernel, dim3 grid, dim3 block, void* stream, const Arguments&... arguments) {
    return start(kernel, grid, block, 0, stream, arguments...);
}

// Launches a kernel that needs `shared_bytes` of dynamic shared memory per block.
template <class Kernel, class... Arguments>
int launch_with_memory(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, void* stream,
                       const Arguments&... arguments) {
    if (shared_bytes > kSharedUnasked) {
        cudaError_t status = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
        if (status == cudaSuccess)
            status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                          cudaSharedmemCarveoutMaxShared);
        if (status != cudaSuccess)
            return static_cast<int>(status);
    }
    return start(kernel, grid, block, shared_bytes, stream, arguments...);
}

// Returns the bytes of shared memory per multiprocessor of the current device.
inline int shared_of_multiprocessor() {
    int device = 0, bytes = 0;
    if (cudaGetDevice(&device) != cudaSuccess)
        return 0;
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    return bytes;
}
#endif

inline unsigned ceil_div(int64_t number, int64_t divisor) {
    return static_cast<unsigned>((number + divisor - 1) / divisor);
}

} // namespace penstock::cuda
