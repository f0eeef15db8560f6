#include "cuda/linear/stream_linear.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

namespace {

template <int kTiles, cuda::Loads kLoads>
int run_with(const cuda::StreamLinear& call, int out_float32, void* stream) {
    const dim3 grid(cuda::ceil_div(call.rows, cuda::kRowsOfLinear));
    const dim3 block(cuda::kWarpsOfLinear * cuda::kWarp);
    const auto kernel = out_float32 != 0 ? cuda::stream_linear_kernel<kTiles, true, kLoads>
                                         : cuda::stream_linear_kernel<kTiles, false, kLoads>;
    return cuda::launch(kernel, grid, block, stream, call);
}

template <int kTiles>
int run(const cuda::StreamLinear& call, int out_float32, void* stream) {
    if (cuda::tuned(cuda::Setting::kLinearLoads) == 0)
        return run_with<kTiles, cuda::Loads::kBeforeUse>(call, out_float32, stream);
    return run_with<kTiles, cuda::Loads::kAfterUse>(call, out_float32, stream);
}

} // namespace

int penstock_cuda_linear(void* out, const void* x, const void* weight, const float* bias,
                         int tokens, int rows, int width, int out_float32, void* stream) {
    if (tokens > 8 * cuda::kColumns || width <= 0 || width % cuda::kChunk != 0)
        return cuda::kRefused;
    if (tokens <= 0)
        return 0;
    const cuda::StreamLinear call{out,
                                  static_cast<const cuda::Bf16*>(x),
                                  static_cast<const cuda::Bf16*>(weight),
                                  bias,
                                  tokens,
                                  rows,
                                  width};
    if (tokens <= cuda::kColumns)
        return run<1>(call, out_float32, stream);
    if (tokens <= 2 * cuda::kColumns)
        return run<2>(call, out_float32, stream);
    if (tokens <= 4 * cuda::kColumns)
        return run<4>(call, out_float32, stream);
    return run<8>(call, out_float32, stream);
}
