#include "cuda/tensor_map.h"

#include "cuda/attention/prefill_attention.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

namespace {

template <int kDim, class Cached>
int launch(const cuda::PrefillAttention& call, const cuda::PrefillMaps& maps, int programs,
           void* stream) {
    constexpr size_t shared_bytes =
        sizeof(typename cuda::MemoryOf<kDim, Cached>::Type) + cuda::kSwizzleBytes;
    static_assert(shared_bytes <= 227 << 10, "a block has at most 227 KiB of shared memory");
    return cuda::launch_with_memory(cuda::prefill_attention_kernel<kDim, Cached>, dim3(programs),
                                    dim3(cuda::kPrefillThreads), shared_bytes, stream, call, maps);
}

} // namespace

int penstock_cuda_prefill_attention(void* out, const void* q, const void* keys, const void* values,
                                    const float* key_scales, const float* value_scales,
                                    const float* sinks, const int32_t* starts,
                                    const int32_t* contexts, const int32_t* tables, int rows,
                                    int tokens, int blocks, int table_width, int64_t key_stride,
                                    int64_t value_stride, float log2_scale, int window, int shorter,
                                    int q_heads, int kv_heads, int dim, int block_size,
                                    int programs, void* stream) {
    const int shared = q_heads % kv_heads == 0 ? q_heads / kv_heads : 0;
    const bool served = (dim == 64 || dim == 128) && shared >= 1 && shared <= cuda::kQueryRows &&
                        block_size >= 8 && (block_size & (block_size - 1)) == 0 &&
                        (key_scales == nullptr) == (value_scales == nullptr);
    if (!served)
        return cuda::kRefused;
    int block_shift = 0;
    while (1 << block_shift < block_size)
        ++block_shift;
    const int tile_tokens = cuda::kQueryRows / shared;
    const int box_keys = block_size < cuda::kTileKeys ? block_size : cuda::kTileKeys;
    const bool narrow = key_scales != nullptr;
    const int64_t panel = int64_t{1} * block_size * dim, row = int64_t{1} * q_heads * dim;
    const auto cached = [&](const void* base, int64_t stride) {
        return cuda::BoxedTensor{base,
                                 narrow ? 1 : 2,
                                 {dim, block_size, kv_heads, blocks},
                                 {dim, panel, stride},
                                 {narrow ? dim : cuda::kBoxColumns, box_keys, 1, 1}};
    };
    const cuda::BoxedTensor tensors[3] = {{q,
                                           2,
                                           {dim, q_heads, tokens, 1},
                                           {dim, row, tokens * row},
                                           {cuda::kBoxColumns, shared, tile_tokens, 1}},
                                          cached(keys, key_stride),
                                          cached(values, value_stride)};
    cuda::PrefillMaps maps;
    cuda::TensorMap* const made[3] = {&maps.queries, &maps.keys, &maps.values};
    for (int i = 0; i < 3; ++i) {
        const int status =
            cuda::can_be_mapped(tensors[i]) ? cuda::make_map(*made[i], tensors[i]) : cuda::kRefused;
        if (status != 0)
            return status;
    }
    const cuda::PrefillAttention call{static_cast<cuda::Bf16*>(out),
                                      key_scales,
                                      value_scales,
                                      sinks,
                                      starts,
                                      contexts,
                                      tables,
                                      log2_scale,
                                      rows,
                                      table_width,
                                      blocks,
                                      window,
                                      q_heads,
                                      kv_heads,
                                      shorter,
                                      tile_tokens,
                                      tokens / tile_tokens + rows,
                                      block_shift};
    const auto start = dim == 64 ? (narrow ? launch<64, cuda::E4m3> : launch<64, cuda::Bf16>)
                                 : (narrow ? launch<128, cuda::E4m3> : launch<128, cuda::Bf16>);
    return start(call, maps, programs, stream);
}
