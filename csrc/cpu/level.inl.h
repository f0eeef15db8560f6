// Gathers every kernel family under the level that the including file has defined. See level.h.
#pragma once

#include "cpu/activation.inl.h"
#include "cpu/attention.inl.h"
#include "cpu/embedding.inl.h"
#include "cpu/experts.inl.h"
#include "cpu/gather.inl.h"
#include "cpu/layer_norm.inl.h"
#include "cpu/level.h"
#include "cpu/linear_affine.inl.h"
#include "cpu/linear_dense.inl.h"
#include "cpu/lora.inl.h"
#include "cpu/norm.inl.h"
#include "cpu/pooling.inl.h"
#include "cpu/quantize.inl.h"
#include "cpu/rope.inl.h"
#include "cpu/sampling.inl.h"
#include "cpu/sampling_adjust.inl.h"
#include "cpu/simd.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

constexpr KernelTable kTable{{kQuantizeKernels, kLinearAffineKernels, kLinearDenseKernels,
                              kEmbeddingKernels, kNormKernels, kRopeKernels, kAttentionKernels,
                              kActivationKernels, kAdjustKernels, kSamplingKernels, kGatherKernels,
                              kLayerNormKernels, kPoolingKernels, kLoraKernels, kExpertKernels}};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL

#define PENSTOCK_JOIN_(a, b) a##b
#define PENSTOCK_JOIN(a, b) PENSTOCK_JOIN_(a, b)

namespace penstock::cpu {
const KernelTable& PENSTOCK_JOIN(kernels_, PENSTOCK_LEVEL)() {
    return PENSTOCK_LEVEL::kTable;
}
} // namespace penstock::cpu
