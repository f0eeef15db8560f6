// The avx512_bf16 ISA with vectors of 16-lane arrays; only kernels that differ from emulated_avx512
// are compiled. For tests.
#define PENSTOCK_ISA emulated_avx512_bf16
#define PENSTOCK_SIMD_ARRAY 16
#define PENSTOCK_BF16_PAIRS
#include "cpu/attention/attention.inl.h"
#include "cpu/isa/isa.h"
#include "cpu/linear/head_linear.inl.h"
#include "cpu/linear/linear_affine.inl.h"
#include "cpu/linear/linear_dense.inl.h"
#include "cpu/linear/quantize.inl.h"
#include "cpu/ops/experts.inl.h"

namespace penstock::cpu {
namespace emulated_avx512_bf16 {
namespace {

constexpr KernelTable kTable{{kLinearDenseKernels, kLinearAffineKernels, kQuantizeKernels,
                              kAttentionKernels, kExpertKernels, kHeadKernels},
                             kernels_emulated_avx512};

} // namespace
} // namespace emulated_avx512_bf16

const KernelTable& kernels_emulated_avx512_bf16() {
    return emulated_avx512_bf16::kTable;
}
} // namespace penstock::cpu
