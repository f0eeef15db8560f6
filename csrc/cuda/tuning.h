// Settings choose the forms of kernels for all later launches of the process. Every form of a
// kernel gives the same results; which one is fastest depends on the GPU and is measured there.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

// The numbers are part of the ABI; kernels/cuda/tuning.py has their names in the same order.
enum class Setting {
    kOverlap,        // 1: a kernel may start while the one before it ends (compute capability 9.0)
    kLinearLoads,    // 0: weights are loaded before the ones before them are used; 1: after it, in
                     // fewer registers
    kDecodePrograms, // 2, 3 or 4 blocks of decode attention a multiprocessor
    kSampleLoads,    // logits a load of the sampler: 0: one; 1: four, where rows are aligned
    kCount,
};

// The value that penstock_cuda_tune set last.
int tuned(Setting setting);

} // namespace penstock::cuda
