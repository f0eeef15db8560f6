#include "cuda/rope_cache/rope_cache.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

int penstock_cuda_rope_cache(void* out, void* keys, void* values, const void* qkv,
                             const float* rope, const int32_t* positions, const int32_t* slots,
                             const float* q_weight, const float* k_weight, const float* key_scales,
                             const float* value_scales, float eps, int tokens, int q_heads,
                             int kv_heads, int dim, int rotated, int block_size, int64_t key_stride,
                             int64_t value_stride, void* stream) {
    if (dim > cuda::kMaxDim || dim % 2 != 0 || rotated % 4 != 0 || rotated > dim) {
        return cuda::kRefused;
    }
    const cuda::RopeCache call{static_cast<cuda::Bf16*>(out),
                               keys,
                               values,
                               key_scales,
                               value_scales,
                               static_cast<const cuda::Bf16*>(qkv),
                               rope,
                               positions,
                               slots,
                               q_weight,
                               k_weight,
                               eps,
                               q_heads,
                               kv_heads,
                               dim,
                               rotated,
                               block_size,
                               key_stride,
                               value_stride};
    const unsigned groups = cuda::ceil_div(q_heads + 2 * kv_heads, cuda::kWarpsOfRope);
    const auto kernel = key_scales == nullptr ? cuda::rope_cache_kernel<cuda::Bf16>
                                              : cuda::rope_cache_kernel<cuda::E4m3>;
    return cuda::launch(kernel, dim3(tokens, groups), dim3(cuda::kWarpsOfRope * cuda::kWarp),
                        stream, call);
}
