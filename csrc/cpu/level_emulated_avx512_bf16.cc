// The avx512_bf16 level over arrays of sixteen: what differs from emulated_avx512. For tests.
#define PENSTOCK_LEVEL emulated_avx512_bf16
#define PENSTOCK_SIMD_ARRAY 16
#define PENSTOCK_BF16_PAIRS
#include "cpu/attention.inl.h"
#include "cpu/experts.inl.h"
#include "cpu/level.h"
#include "cpu/linear_affine.inl.h"
#include "cpu/linear_dense.inl.h"
#include "cpu/quantize.inl.h"

namespace penstock::cpu {
namespace emulated_avx512_bf16 {
namespace {

constexpr KernelTable kTable{{kLinearDenseKernels, kLinearAffineKernels, kQuantizeKernels,
                              kAttentionKernels, kExpertKernels},
                             kernels_emulated_avx512};

} // namespace
} // namespace emulated_avx512_bf16

const KernelTable& kernels_emulated_avx512_bf16() {
    return emulated_avx512_bf16::kTable;
}
} // namespace penstock::cpu
