// Gathers every kernel family under the level that the including file has defined. See level.h.
#pragma once

#include "cpu/level.h"
#include "cpu/simd.h"

#if __has_include("cpu/quantize.inl.h")
#include "cpu/quantize.inl.h"
#define PENSTOCK_QUANTIZE kQuantizeKernels,
#else
#define PENSTOCK_QUANTIZE
#endif
#if __has_include("cpu/linear_affine.inl.h")
#include "cpu/linear_affine.inl.h"
#define PENSTOCK_LINEAR_AFFINE kLinearAffineKernels,
#else
#define PENSTOCK_LINEAR_AFFINE
#endif
#if __has_include("cpu/linear_dense.inl.h")
#include "cpu/linear_dense.inl.h"
#define PENSTOCK_LINEAR_DENSE kLinearDenseKernels,
#else
#define PENSTOCK_LINEAR_DENSE
#endif
#if __has_include("cpu/embedding.inl.h")
#include "cpu/embedding.inl.h"
#define PENSTOCK_EMBEDDING kEmbeddingKernels,
#else
#define PENSTOCK_EMBEDDING
#endif
#if __has_include("cpu/norm.inl.h")
#include "cpu/norm.inl.h"
#define PENSTOCK_NORM kNormKernels,
#else
#define PENSTOCK_NORM
#endif
#if __has_include("cpu/rope.inl.h")
#include "cpu/rope.inl.h"
#define PENSTOCK_ROPE kRopeKernels,
#else
#define PENSTOCK_ROPE
#endif
#if __has_include("cpu/attention.inl.h")
#include "cpu/attention.inl.h"
#define PENSTOCK_ATTENTION kAttentionKernels,
#else
#define PENSTOCK_ATTENTION
#endif
#if __has_include("cpu/activation.inl.h")
#include "cpu/activation.inl.h"
#define PENSTOCK_ACTIVATION kActivationKernels,
#else
#define PENSTOCK_ACTIVATION
#endif
#if __has_include("cpu/sampling_adjust.inl.h")
#include "cpu/sampling_adjust.inl.h"
#define PENSTOCK_ADJUST kAdjustKernels,
#else
#define PENSTOCK_ADJUST
#endif
#if __has_include("cpu/sampling.inl.h")
#include "cpu/sampling.inl.h"
#define PENSTOCK_SAMPLING kSamplingKernels,
#else
#define PENSTOCK_SAMPLING
#endif
#if __has_include("cpu/gather.inl.h")
#include "cpu/gather.inl.h"
#define PENSTOCK_GATHER kGatherKernels,
#else
#define PENSTOCK_GATHER
#endif

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

constexpr KernelTable kTable{
    {PENSTOCK_QUANTIZE PENSTOCK_LINEAR_AFFINE PENSTOCK_LINEAR_DENSE PENSTOCK_EMBEDDING PENSTOCK_NORM
         PENSTOCK_ROPE PENSTOCK_ATTENTION PENSTOCK_ACTIVATION PENSTOCK_ADJUST PENSTOCK_SAMPLING
             PENSTOCK_GATHER}};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL

#define PENSTOCK_JOIN_(a, b) a##b
#define PENSTOCK_JOIN(a, b) PENSTOCK_JOIN_(a, b)

namespace penstock::cpu {
const KernelTable& PENSTOCK_JOIN(kernels_, PENSTOCK_LEVEL)() {
    return PENSTOCK_LEVEL::kTable;
}
} // namespace penstock::cpu
