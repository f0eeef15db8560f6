// Compiled kernels that are loaded and launched through the CUDA driver: part of the C ABI. The
// driver is opened at run time, so the library loads without it; no CUDA header is needed.
//
// Functions return 0 or a CUresult (penstock_cuda_driver_error names it), kNoDriver or kMisaligned.
#pragma once

#include <cstdint>

#include "cuda/abi.h"

namespace penstock::cuda {

constexpr int kNoDriver = -1;
constexpr int kMisaligned = -2;

} // namespace penstock::cuda

// Open the driver ("libcuda.so.1"); kNoDriver where it is absent or lacks a function. Once.
PENSTOCK_EXPORT int penstock_cuda_open_driver(const char* file);
PENSTOCK_EXPORT const char* penstock_cuda_driver_error(int code);

// Load `image`, a cubin, into the current context (that of `device` where there is none), and find
// `entry` in it. `threads` of a block, `shared` bytes of dynamic shared memory. Bit i of `pointers`
// is set where the 8 bytes at 8 i of the parameters are an address that must be a multiple of 16.
// `kernel` receives what penstock_cuda_start takes; it is never unloaded.
PENSTOCK_EXPORT int penstock_cuda_load(const void* image, const char* entry, int device,
                                       int threads, int shared, uint64_t pointers, void** kernel);

// What a launch is asked with: this, and right behind it `size` bytes of packed parameters. One
// piece of memory, so that a caller in Python converts two arguments and no more.
struct PenstockCudaRequest {
    uint32_t x, y, z; // blocks
    uint32_t size;
    void* stream;
};

// Launch. Neither waits nor allocates.
PENSTOCK_EXPORT int penstock_cuda_start(void* kernel, const PenstockCudaRequest* request);
