// Loads and launches compiled kernels (cubins) through the CUDA driver: part of the C ABI. The
// driver is opened at run time, so the library also loads on machines without a driver; no CUDA
// header is needed.
//
// Functions return 0, a CUresult (see penstock_cuda_driver_error), kNoDriver or kMisaligned.
#pragma once

#include <cstdint>

#include "cuda/abi.h"

namespace penstock::cuda {

constexpr int kNoDriver = -1;
constexpr int kMisaligned = -2;

} // namespace penstock::cuda

// Opens the driver (`file`, usually "libcuda.so.1") once. Returns kNoDriver if it is missing or
// lacks a function.
PENSTOCK_EXPORT int penstock_cuda_open_driver(const char* file);
PENSTOCK_EXPORT const char* penstock_cuda_driver_error(int code);

// Loads `image`, a cubin, into the current context (the primary context of `device` if there is
// none) and looks up the kernel `entry`. `threads`: threads per block. `shared`: bytes of dynamic
// shared memory per block. `pointers`: bit i is set if the 8 bytes at offset 8 i of the parameters
// are an address, which must be a multiple of 16. `kernel` receives the handle for
// penstock_cuda_start; the kernel is never unloaded.
PENSTOCK_EXPORT int penstock_cuda_load(const void* image, const char* entry, int device,
                                       int threads, int shared, uint64_t pointers, void** kernel);

// Header of a launch request, directly followed by `size` bytes of packed parameters. One
// contiguous request means that a caller in Python converts only two arguments.
struct PenstockCudaRequest {
    uint32_t x, y, z; // blocks
    uint32_t size;
    void* stream;
};

// Launches a kernel, without waiting or allocating.
PENSTOCK_EXPORT int penstock_cuda_start(void* kernel, const PenstockCudaRequest* request);
