#include "cuda/linear/stream_float8.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

namespace {

template <int kTiles>
int run(const cuda::StreamFloat8& call, void* stream) {
    const dim3 grid(cuda::ceil_div(call.rows, cuda::kRowsOfFloat8));
    const dim3 block(cuda::kWarpsOfFloat8 * cuda::kWarp);
    return cuda::launch(cuda::stream_float8_kernel<kTiles>, grid, block, stream, call);
}

} // namespace

int penstock_cuda_linear_float8(void* out, const void* x, const void* codes, const float* scale,
                                const float* bias, int tokens, int rows, int width, int scale_rows,
                                int scale_stride, int out_float32, void* stream) {
    if (tokens > 2 * cuda::kColumns || width <= 0 || width % cuda::kColumnsOfScale != 0 ||
        scale_rows <= 0)
        return cuda::kRefused;
    if (tokens <= 0)
        return 0;
    const cuda::StreamFloat8 call{out,
                                  static_cast<const cuda::Bf16*>(x),
                                  static_cast<const uint8_t*>(codes),
                                  scale,
                                  bias,
                                  tokens,
                                  rows,
                                  width,
                                  scale_rows,
                                  scale_stride,
                                  out_float32 != 0};
    if (tokens <= cuda::kColumns)
        return run<1>(call, stream);
    return run<2>(call, stream);
}
