// Collects every kernel family for the ISA that the including file has defined. See isa.h.
#pragma once

#include "cpu/attention/attention.inl.h"
#include "cpu/isa/isa.h"
#include "cpu/linear/head_linear.inl.h"
#include "cpu/linear/linear_affine.inl.h"
#include "cpu/linear/linear_dense.inl.h"
#include "cpu/linear/linear_prompt.inl.h"
#include "cpu/linear/quantize.inl.h"
#include "cpu/lora/lora.inl.h"
#include "cpu/ops/activation.inl.h"
#include "cpu/ops/altup.inl.h"
#include "cpu/ops/elementwise.inl.h"
#include "cpu/ops/embedding.inl.h"
#include "cpu/ops/experts.inl.h"
#include "cpu/ops/gated_rows.inl.h"
#include "cpu/ops/gather.inl.h"
#include "cpu/ops/head_norms.inl.h"
#include "cpu/ops/layer_norm.inl.h"
#include "cpu/ops/media.inl.h"
#include "cpu/ops/pooling.inl.h"
#include "cpu/ops/recurrent_conv.inl.h"
#include "cpu/ops/recurrent_scan.inl.h"
#include "cpu/ops/rms_norm.inl.h"
#include "cpu/ops/rope.inl.h"
#include "cpu/ops/routing.inl.h"
#include "cpu/ops/sparse_gate.inl.h"
#include "cpu/sampling/adjust_logits.inl.h"
#include "cpu/sampling/sampling.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// One family per line, so that adding one changes one line.
// clang-format off
constexpr KernelTable kTable{{
    kQuantizeKernels,
    kLinearAffineKernels,
    kLinearDenseKernels,
    kLinearPromptKernels,
    kEmbeddingKernels,
    kNormKernels,
    kRopeKernels,
    kAttentionKernels,
    kActivationKernels,
    kAdjustKernels,
    kSamplingKernels,
    kGatherKernels,
    kLayerNormKernels,
    kPoolingKernels,
    kLoraKernels,
    kExpertKernels,
    kMediaKernels,
    kElementwiseKernels,
    kHeadNormKernels,
    kSparseGateKernels,
    kAltUpKernels,
    kRoutingKernels,
    kGatedRowKernels,
    kConvKernels,
    kScanKernels,
    kHeadKernels,
}};
// clang-format on

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA

namespace penstock::cpu {
const KernelTable& PENSTOCK_JOIN(kernels_, PENSTOCK_ISA)() {
    return PENSTOCK_ISA::kTable;
}
} // namespace penstock::cpu
