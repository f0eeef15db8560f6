// Kernels for AVX2 with AVX-VNNI. Only the products of integers are compiled here; all other
// kernels are those of the avx2 ISA.
#define PENSTOCK_ISA avx_vnni
#define PENSTOCK_SIMD_AVX2
#define PENSTOCK_AVX_VNNI
#include "cpu/isa/isa.h"
#include "cpu/linear/linear_affine.inl.h"
#include "cpu/ops/experts.inl.h"

namespace penstock::cpu {
namespace avx_vnni {
namespace {

constexpr KernelTable kTable{{kLinearAffineKernels, kExpertKernels}, kernels_avx2};

} // namespace
} // namespace avx_vnni

const KernelTable& kernels_avx_vnni() {
    return avx_vnni::kTable;
}
} // namespace penstock::cpu
