// Device primitives of sm_90a, in addition to device.h: barriers in shared memory that count
// arrivals and bytes (mbarrier), copies of boxes (TMA), warp-group products (wgmma), and register
// reallocation. nvcc compiles them to PTX; other compilers emulate them with the same semantics.
// Terms and layouts are those of the PTX ISA: 9.7.13.15 (mbarrier), 9.7.9.25
// (cp.async.bulk.tensor), 9.7.15 (wgmma).
#pragma once

#include "cuda/device.h"

#ifdef PENSTOCK_EMULATED
#include "cuda/emulated_hopper.h"
#else
#include <cuda.h> // types only: the driver is not linked

namespace penstock::cuda {

// Describes a tensor and the boxes that are copied from it. Created on the host (tensor_map.h).
using TensorMap = CUtensorMap;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Initializes a barrier whose phase ends after `count` arrivals. One thread calls this, before
// `publish_barriers` and a block barrier.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
}

__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrives at the barrier, and adds `bytes` to the number of copied bytes for which its phase waits.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

// Waits until the phase with this parity has ended. The first phase has parity 0, so a wait for
// parity 1 returns at once during the first phase.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    const uint32_t address = shared_address(barrier);
    uint32_t ended = 0;
    while (ended == 0) {
        asm volatile("{\n"
                     ".reg .pred ended;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, ended;\n"
                     "}"
                     : "=r"(ended)
                     : "r"(address), "r"(parity)
                     : "memory");
    }
}

// Starts the TMA copy of a box, which counts at the barrier with its full size. Elements outside
// the tensor become zero. `to` is aligned to 128 bytes.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, uint64_t* barrier,
                                         const int (&at)[4]) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
                 "r"(shared_address(barrier))
                 : "memory");
}

// Makes this thread's writes to shared memory visible to TMA copies and products that follow a
// barrier.
__device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits until `threads` threads have called this with the same `id`, 1 to 15.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Must be called before the first product that reads registers, or adds to registers, that the
// threads have modified.
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kLater` committed groups of products are in flight.
template <int kLater>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
}

// Prevents the compiler from moving uses of these registers across this call.
template <int kCount>
__device__ __forceinline__ void hold(float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&words)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
            asm volatile("" : "+r"(words[i][j])::"memory");
    }
}

#define PENSTOCK_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PENSTOCK_SIXTEEN(d, i)                                                                     \
    PENSTOCK_FOUR(d, i), PENSTOCK_FOUR(d, i + 4), PENSTOCK_FOUR(d, i + 8), PENSTOCK_FOUR(d, i + 12)
#define PENSTOCK_LIST32                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PENSTOCK_LIST64                                                                            \
    PENSTOCK_LIST32                                                                                \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Computes sums [64, 128] (+)= a [64, 16] b [128, 16]^T: bfloat16 operands, float32 sums. Both
// operands are in shared memory with k innermost. The sums are replaced if `add` is 0.
__device__ __forceinline__ void multiply_shared(float (&sums)[64], uint64_t a, uint64_t b,
                                                int add) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PENSTOCK_LIST64
                 "}, %64, %65, add, 1, 1, 0, 0;\n"
                 "}"
                 : PENSTOCK_SIXTEEN(sums, 0), PENSTOCK_SIXTEEN(sums, 16),
                   PENSTOCK_SIXTEEN(sums, 32), PENSTOCK_SIXTEEN(sums, 48)
                 : "l"(a), "l"(b), "r"(add));
}

// Computes sums [64, N] += a [64, 16] b [16, N], with a in registers and b in shared memory with
// its columns innermost.
__device__ __forceinline__ void multiply_registers(float (&sums)[64], const uint32_t (&a)[4],
                                                   uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PENSTOCK_LIST64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : PENSTOCK_SIXTEEN(sums, 0), PENSTOCK_SIXTEEN(sums, 16),
                   PENSTOCK_SIXTEEN(sums, 32), PENSTOCK_SIXTEEN(sums, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_registers(float (&sums)[32], const uint32_t (&a)[4],
                                                   uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" PENSTOCK_LIST32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : PENSTOCK_SIXTEEN(sums, 0), PENSTOCK_SIXTEEN(sums, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef PENSTOCK_FOUR
#undef PENSTOCK_SIXTEEN
#undef PENSTOCK_LIST32
#undef PENSTOCK_LIST64

} // namespace penstock::cuda
#endif

namespace penstock::cuda {

constexpr int kGroup = 128;     // threads of a warp group
constexpr int kBoxColumns = 64; // bfloat16 per row of 128 bytes, the swizzle width

// Returns the descriptor of a matrix in shared memory whose rows are 128 bytes, swizzled over 1024
// aligned bytes: bits 4 to 6 of an address are xored with bits 7 to 9. `stride_bytes`: distance
// between groups of eight rows. `leading_bytes`: distance between pieces of 64 columns if the
// columns of b are innermost; otherwise unused.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading_bytes,
                                                      uint32_t stride_bytes) {
    const auto encoded = [](uint32_t bytes) {
        return static_cast<uint64_t>((bytes & 0x3ffffu) >> 4);
    };
    constexpr uint64_t kSwizzle128 = 1ull << 62;
    return encoded(address) | encoded(leading_bytes) << 16 | encoded(stride_bytes) << 32 |
           kSwizzle128;
}

} // namespace penstock::cuda
