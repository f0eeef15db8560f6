#include "cuda/attention/decode_attention.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

namespace {

template <int kDim, class Cached, int kPrograms>
int start(const cuda::DecodeAttention& call, int multiprocessors, void* stream) {
    return cuda::launch(cuda::decode_attention_kernel<kDim, Cached, kPrograms>,
                        dim3(kPrograms * multiprocessors), dim3(cuda::kWarpsOfDecode * cuda::kWarp),
                        stream, call);
}

template <int kDim, class Cached>
int start_form(const cuda::DecodeAttention& call, int multiprocessors, void* stream) {
    switch (cuda::tuned(cuda::Setting::kDecodePrograms)) {
    case 4: return start<kDim, Cached, 4>(call, multiprocessors, stream);
    case 3: return start<kDim, Cached, 3>(call, multiprocessors, stream);
    default: return start<kDim, Cached, 2>(call, multiprocessors, stream);
    }
}

} // namespace

int penstock_cuda_decode_attention(void* out, const void* q, const void* keys, const void* values,
                                   const float* key_scales, const float* value_scales,
                                   const float* sinks, const int32_t* starts,
                                   const int32_t* contexts, const int32_t* tables,
                                   const int32_t* units, const int32_t* unit_count, float* parts,
                                   float* stats, int32_t* arrived, int table_width,
                                   int64_t key_stride, int64_t value_stride, float log2_scale,
                                   int window, int lanes, int q_heads, int kv_heads, int dim,
                                   int block_size, int chunk, int multiprocessors, void* stream) {
    const bool served = (dim == 64 || dim == 128) && lanes <= 2 * cuda::kQueriesOfTile &&
                        block_size >= cuda::kKeys && (block_size & (block_size - 1)) == 0 &&
                        q_heads % kv_heads == 0 && chunk >= cuda::kKeys &&
                        (chunk & (chunk - 1)) == 0;
    if (!served)
        return cuda::kRefused;
    int block_shift = 0;
    while (1 << block_shift < block_size)
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
                                     chunk,
                                     block_shift};
    using cuda::Bf16, cuda::E4m3;
    const auto start = key_scales == nullptr
                           ? (dim == 64 ? start_form<64, Bf16> : start_form<128, Bf16>)
                           : (dim == 64 ? start_form<64, E4m3> : start_form<128, E4m3>);
    return start(call, multiprocessors, stream);
}
