// Kernels for AVX-512 with BF16. The products of bf16 weights, attention over a float16 cache, the
// products of integers and the quantization of rows are compiled here; all other kernels are those
// of the avx512 ISA. Products of integers use paired scales, and another loop order on AMD
// processors of this ISA.
#define PENSTOCK_ISA avx512_bf16
#define PENSTOCK_SIMD_AVX512
#define PENSTOCK_BF16_PAIRS
#include "cpu/attention/attention.inl.h"
#include "cpu/isa/isa.h"
#include "cpu/linear/head_linear.inl.h"
#include "cpu/linear/linear_affine.inl.h"
#include "cpu/linear/linear_dense.inl.h"
#include "cpu/linear/quantize.inl.h"
#include "cpu/ops/experts.inl.h"

namespace penstock::cpu {
namespace avx512_bf16 {
namespace {

constexpr KernelTable kTable{{kLinearDenseKernels, kLinearAffineKernels, kQuantizeKernels,
                              kAttentionKernels, kExpertKernels, kHeadKernels},
                             kernels_avx512};

} // namespace
} // namespace avx512_bf16

const KernelTable& kernels_avx512_bf16() {
    return avx512_bf16::kTable;
}
} // namespace penstock::cpu
