#include "cuda/attention/decode_attention.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

int penstock_cuda_decode_attention(void* out, const void* q, const void* keys, const void* values,
                                   const float* key_scales, const float* value_scales,
                                   const float* sinks, const int32_t* starts,
                                   const int32_t* contexts, const int32_t* tables,
                                   const int32_t* units, const int32_t* unit_count, float* parts,
                                   float* stats, int32_t* arrived, int table_width,
                                   int64_t key_stride, int64_t value_stride, float log2_scale,
                                   int window, int lanes, int q_heads, int kv_heads, int dim,
                                   int block_tokens, int programs, void* stream) {
    const bool served = (dim == 64 || dim == 128) && lanes <= cuda::kQueries &&
                        block_tokens >= cuda::kKeys && (block_tokens & (block_tokens - 1)) == 0 &&
                        q_heads % kv_heads == 0;
    if (!served)
        return cuda::kRefused;
    int block_shift = 0;
    while (1 << block_shift < block_tokens)
        ++block_shift;
    const cuda::DecodeAttention call{static_cast<cuda::Bf16*>(out),
                                     static_cast<const cuda::Bf16*>(q),
                                     keys,
                                     values,
                                     key_scales,
                                     value_scales,
                                     sinks,
                                     starts,
                                     contexts,
                                     tables,
                                     units,
                                     unit_count,
                                     parts,
                                     stats,
                                     arrived,
                                     key_stride,
                                     value_stride,
                                     log2_scale,
                                     table_width,
                                     window,
                                     lanes,
                                     q_heads,
                                     kv_heads,
                                     block_shift};
    using cuda::Bf16, cuda::E4m3;
    const dim3 grid(programs), block(cuda::kWarpsOfDecode * cuda::kWarp);
    const auto kernel = key_scales == nullptr
                            ? (dim == 64 ? cuda::decode_attention_kernel<64, Bf16>
                                         : cuda::decode_attention_kernel<128, Bf16>)
                            : (dim == 64 ? cuda::decode_attention_kernel<64, E4m3>
                                         : cuda::decode_attention_kernel<128, E4m3>);
    return cuda::launch(kernel, grid, block, stream, call);
}
