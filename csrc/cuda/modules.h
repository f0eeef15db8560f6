// Loads and launches compiled kernels (cubins) through the CUDA driver: part of the C ABI. The
// driver is opened at run time, so the library loads without it; no CUDA header is needed.
//
// Functions return 0, a CUresult (see penstock_cuda_driver_error), kNoDriver or kMisaligned.
#pragma once

#include <cstdint>

#include "cuda/abi.h"

namespace penstock::cuda {

constexpr int kNoDriver = -1;
constexpr int kMisaligned = -2;

} // namespace penstock::cuda

// Open the driver ("libcuda.so.1") once; kNoDriver if it is missing or lacks a function.
PENSTOCK_EXPORT int penstock_cuda_open_driver(const char* file);
PENSTOCK_EXPORT const char* penstock_cuda_driver_error(int code);

// Load `image`, a cubin, into the current context (that of `device` if there is none), and look up
// `entry` in it. `threads` per block, `shared` bytes of dynamic shared memory. Bit i of `pointers`
// is set if the 8 bytes at 8 i of the parameters are an address that must be a multiple of 16.
// `kernel` receives the handle for penstock_cuda_start; it is never unloaded.
PENSTOCK_EXPORT int penstock_cuda_load(const void* image, const char* entry, int device,
                                       int threads, int shared, uint64_t pointers, void** kernel);

// The arguments of a launch: this header, directly followed by `size` bytes of packed parameters.
// They are contiguous so that a caller in Python converts only two arguments.
struct PenstockCudaRequest {
    uint32_t x, y, z; // blocks
    uint32_t size;
    void* stream;
};

// Launch a kernel. Does not wait or allocate.
PENSTOCK_EXPORT int penstock_cuda_start(void* kernel, const PenstockCudaRequest* request);
