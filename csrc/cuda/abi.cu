// The functions that say what this library is.
#include "cuda/abi.h"

#include "cuda/device.h"

int penstock_cuda_abi() {
    return PENSTOCK_CUDA_ABI;
}

#ifdef PENSTOCK_EMULATED
int penstock_cuda_runtime() {
    return 0;
}

const char* penstock_cuda_error(int) {
    return "extents that the kernel does not serve";
}
#else
int penstock_cuda_runtime() {
    return CUDART_VERSION;
}

const char* penstock_cuda_error(int code) {
    if (code < 0)
        return "extents that the kernel does not serve";
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}
#endif
