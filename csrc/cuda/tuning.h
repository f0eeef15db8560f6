// Settings that select kernel variants for all later launches of the process. All variants of a
// kernel give the same results; the fastest one depends on the GPU and is measured on it.
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

// The settings. Their numbers are part of the ABI; kernels/cuda/tuning.py lists their names in the
// same order.
enum class Setting {
    kOverlap, // 1: a kernel may start while the previous one is ending (compute capability 9.0)
    // 0: load the next weights before the current ones are used; 1: afterwards, in fewer registers
    kLinearLoads,
    kDecodePrograms, // 2, 3 or 4 blocks of decode attention per multiprocessor
    kSampleLoads,    // 0: the sampler loads one logit at a time; 1: four, if rows are aligned
    kCount,
};

// Returns the value that penstock_cuda_tune set last.
int tuned(Setting setting);

} // namespace penstock::cuda
