// Settings select kernel variants for all later launches of the process. All variants of a kernel
// give the same results; which one is fastest depends on the GPU and is measured there.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

// The numbers are part of the ABI; kernels/cuda/tuning.py lists their names in the same order.
enum class Setting {
    kOverlap, // 1: a kernel may start while the previous one is ending (compute capability 9.0)
    // 0: weights are loaded before the previous ones are used; 1: afterwards, in fewer registers
    kLinearLoads,
    kDecodePrograms, // 2, 3 or 4 blocks of decode attention per multiprocessor
    kSampleLoads,    // logits per load of the sampler: 0: one; 1: four, if rows are aligned
    kCount,
};

// The value that penstock_cuda_tune set last.
int tuned(Setting setting);

} // namespace penstock::cuda
