// Version and tuning functions of the C ABI.
#include "cuda/abi.h"

#include <atomic>

#include "cuda/launch.h"
#include "cuda/tuning.h"

namespace cuda = penstock::cuda;

namespace {

constexpr int kSettings = static_cast<int>(cuda::Setting::kCount);

// The allowed values of each setting, as a bit mask. Each setting starts with its smallest value.
constexpr unsigned kAllowed[kSettings] = {0b11, 0b11, 0b11100, 0b11};

std::atomic<int> values[kSettings] = {0, 0, 2, 0};

// Returns whether kernels may overlap on the current device: only code for compute capability 9.0
// waits for earlier kernels (`wait_for_earlier`).
bool may_overlap() {
#ifdef PENSTOCK_EMULATED
    return true;
#else
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
#endif
}

} // namespace

int cuda::tuned(Setting setting) {
    return values[static_cast<int>(setting)].load(std::memory_order_relaxed);
}

int penstock_cuda_tune(int setting, int value) {
    if (setting < 0 || setting >= kSettings)
        return cuda::kRefused;
    if (value < 0 || value > 31 || (kAllowed[setting] >> value & 1) == 0)
        return cuda::kRefused;
    if (setting == static_cast<int>(cuda::Setting::kOverlap) && value != 0 && !may_overlap())
        return cuda::kRefused;
    values[setting].store(value, std::memory_order_relaxed);
    return 0;
}

int penstock_cuda_abi() {
    return PENSTOCK_CUDA_ABI;
}

#ifdef PENSTOCK_EMULATED
int penstock_cuda_runtime() {
    return 0;
}

const char* penstock_cuda_error(int) {
    return "extents that the kernel does not support";
}
#else
int penstock_cuda_runtime() {
    return CUDART_VERSION;
}

const char* penstock_cuda_error(int code) {
    if (code < 0)
        return "extents that the kernel does not support";
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}
#endif
