#include "cuda/linear/staged_linear.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

namespace {

template <bool kFloat8, int kTokens>
int run(const cuda::StagedLinear& call, int blocks, void* stream) {
    return cuda::launch_with_memory(cuda::staged_linear_kernel<kFloat8, kTokens>, dim3(blocks),
                                    dim3(cuda::kThreadsOfStaged),
                                    cuda::Staging<kFloat8, kTokens>::kSharedBytes, stream, call);
}

template <bool kFloat8>
int run_for(const cuda::StagedLinear& call, int blocks, void* stream) {
    if (call.tokens <= 16)
        return run<kFloat8, 16>(call, blocks, stream);
    if (call.tokens <= 32)
        return run<kFloat8, 32>(call, blocks, stream);
    if (call.tokens <= 64)
        return run<kFloat8, 64>(call, blocks, stream);
    return run<kFloat8, 128>(call, blocks, stream);
}

} // namespace

int penstock_cuda_staged_linear(void* out, const void* x, const void* weight, const float* scale,
                                const float* bias, float* parts, int32_t* arrived, int tokens,
                                int rows, int width, int scale_rows, int scale_stride, int blocks,
                                int out_float32, void* stream) {
    const int columns = scale == nullptr ? 64 : 128;
    if (tokens > 128 || width <= 0 || width % columns != 0 || blocks < 1 ||
        (scale != nullptr && scale_rows <= 0))
        return cuda::kRefused;
    if (tokens <= 0)
        return 0;
    const cuda::StagedLinear call{out,
                                  static_cast<const cuda::Bf16*>(x),
                                  static_cast<const unsigned char*>(weight),
                                  scale,
                                  bias,
                                  parts,
                                  arrived,
                                  tokens,
                                  rows,
                                  width,
                                  scale_rows,
                                  scale_stride,
                                  out_float32 != 0};
    return scale == nullptr ? run_for<false>(call, blocks, stream)
                            : run_for<true>(call, blocks, stream);
}
