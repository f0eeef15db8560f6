// Collects the kernel families that multiply with BF16 instructions or matrix tiles, or read what
// such products read, for the ISA that the including file has defined. All other kernels are those
// of the ISA PENSTOCK_BASE_ISA. See isa.h.
#pragma once

#include "cpu/attention/attention.inl.h"
#include "cpu/isa/isa.h"
#include "cpu/linear/head_linear.inl.h"
#include "cpu/linear/linear_affine.inl.h"
#include "cpu/linear/linear_dense.inl.h"
#include "cpu/linear/linear_prompt.inl.h"
#include "cpu/linear/quantize.inl.h"
#include "cpu/ops/experts.inl.h"

namespace penstock::cpu {
namespace PENSTOCK_ISA {
namespace {

constexpr KernelTable kTable{{kLinearDenseKernels, kLinearAffineKernels, kLinearPromptKernels,
                              kQuantizeKernels, kAttentionKernels, kExpertKernels, kHeadKernels},
                             PENSTOCK_JOIN(kernels_, PENSTOCK_BASE_ISA)};

} // namespace
} // namespace PENSTOCK_ISA

const KernelTable& PENSTOCK_JOIN(kernels_, PENSTOCK_ISA)() {
    return PENSTOCK_ISA::kTable;
}
} // namespace penstock::cpu
