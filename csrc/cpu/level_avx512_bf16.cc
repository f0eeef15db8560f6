// AVX-512 with BF16: the avx512 level, but for products of bf16 weights, attention over float16,
// and products of integers, which AMD's processors of this level want in another order and with
// paired scales, for which rows are quantized.
#define PENSTOCK_LEVEL avx512_bf16
#define PENSTOCK_SIMD_AVX512
#define PENSTOCK_BF16_PAIRS
#include "cpu/attention.inl.h"
#include "cpu/experts.inl.h"
#include "cpu/level.h"
#include "cpu/linear_affine.inl.h"
#include "cpu/linear_dense.inl.h"
#include "cpu/quantize.inl.h"

namespace penstock::cpu {
namespace avx512_bf16 {
namespace {

constexpr KernelTable kTable{{kLinearDenseKernels, kLinearAffineKernels, kQuantizeKernels,
                              kAttentionKernels, kExpertKernels},
                             kernels_avx512};

} // namespace
} // namespace avx512_bf16

const KernelTable& kernels_avx512_bf16() {
    return avx512_bf16::kTable;
}
} // namespace penstock::cpu
