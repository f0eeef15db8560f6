#include "cuda/sampling/sample.cuh"

#include "cuda/abi.h"
#include "cuda/launch.h"

namespace cuda = penstock::cuda;

int penstock_cuda_sample(int32_t* out, const float* logits, const float* temperatures,
                         const int32_t* top_ks, const float* top_ps, const float* min_ps,
                         const int64_t* seeds, const int64_t* positions, int rows, int vocabulary,
                         void* stream) {
    if (vocabulary <= 0)
        return cuda::kRefused;
    const bool aligned = vocabulary % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    const bool wide = aligned && cuda::tuned(cuda::Setting::kSampleLoads) != 0;
    const cuda::Sample call{out,
                            logits,
                            temperatures,
                            top_ks,
                            top_ps,
                            min_ps,
                            reinterpret_cast<const uint64_t*>(seeds),
                            reinterpret_cast<const uint64_t*>(positions),
                            vocabulary,
                            wide};
    return cuda::launch(cuda::sample_kernel, dim3(rows), dim3(cuda::kSampleThreads), stream, call);
}
