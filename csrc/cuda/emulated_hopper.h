// Emulates hopper.h on the CPU, at least as strictly as the GPU. Results arrive as late as allowed:
// a copy when its barrier is waited for, a product when its group is waited for (in every second
// block products run at once). The destination of a copy is filled with NaN when the copy starts.
// Misuse aborts with a message that names it.
#pragma once

#include <cstdint>

#include "cuda/emulated.h"

#define __grid_constant__

namespace penstock::emulated {

// The arguments of cuTensorMapEncodeTiled for four dimensions. Elements are bfloat16 with a
// 128-byte swizzle, or plain bytes.
struct TensorMap {
    const unsigned char* base;
    uint32_t item_bytes;
    uint64_t sizes[4];
    uint64_t strides[3]; // bytes, of dimensions 1 to 3
    uint32_t box[4];
};

uint32_t shared_address(const void* pointer);
void barrier_init(uint64_t* barrier, int count);
void barrier_arrive(uint64_t* barrier, int64_t bytes);
void barrier_wait(uint64_t* barrier, uint32_t parity);
void copy_box(void* to, const TensorMap& map, uint64_t* barrier, const int (&at)[4]);
void named_barrier(int id, int threads);
// Computes a product. `a`: descriptor of the left operand in shared memory; null if it is in the
// registers `held`.
void multiply(float* sums, int columns, const uint64_t* a, const uint32_t* held, uint64_t b,
              bool add);
void products_commit();
void products_wait(int later);

} // namespace penstock::emulated

namespace penstock::cuda {

using emulated::barrier_init;
using emulated::barrier_wait;
using emulated::copy_box;
using emulated::named_barrier;
using emulated::products_commit;
using emulated::shared_address;
using emulated::TensorMap;

inline void publish_barriers() {}
inline void async_proxy_fence() {}
inline void products_begin() {}

inline void barrier_arrive(uint64_t* barrier) {
    emulated::barrier_arrive(barrier, 0);
}
inline void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
    emulated::barrier_arrive(barrier, bytes);
}

template <int kRegisters>
void warpgroup_reg_dealloc() {
    static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void warpgroup_reg_alloc() {
    static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

template <int kLater>
void products_wait() {
    emulated::products_wait(kLater);
}

template <class Registers>
void hold(Registers&) {}

inline void multiply_shared(float (&sums)[64], uint64_t a, uint64_t b, int add) {
    emulated::multiply(sums, 128, &a, nullptr, b, add != 0);
}
template <int kSums>
void multiply_registers(float (&sums)[kSums], const uint32_t (&a)[4], uint64_t b) {
    emulated::multiply(sums, 2 * kSums, nullptr, a, b, true);
}

} // namespace penstock::cuda
