#include "cuda/norm/rms_norm.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

int penstock_cuda_rms_norm(void* out, void* total, const void* x, const void* residual,
                           const float* weight, float eps, int tokens, int width, void* stream) {
    constexpr int kMaxThreads = cuda::kMaxNormThreads;
    if (width % 8 != 0 || width <= 0 || width > 4 * 8 * kMaxThreads)
        return cuda::kRefused;
    const int vectors = width / 8;
    const int of_thread = vectors <= kMaxThreads ? 1 : vectors <= 2 * kMaxThreads ? 2 : 4;
    const unsigned warps = cuda::ceil_div(vectors, of_thread * cuda::kWarp);
    const auto run = [&](auto kernel) {
        return cuda::launch(kernel, dim3(tokens), dim3(warps * cuda::kWarp), stream,
                            static_cast<cuda::Bf16*>(out), static_cast<cuda::Bf16*>(total),
                            static_cast<const cuda::Bf16*>(x),
                            static_cast<const cuda::Bf16*>(residual), weight, eps, width);
    };
    if (of_thread == 1)
        return run(cuda::rms_norm_kernel<1>);
    if (of_thread == 2)
        return run(cuda::rms_norm_kernel<2>);
    return run(cuda::rms_norm_kernel<4>);
}
