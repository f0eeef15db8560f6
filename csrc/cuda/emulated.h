// Emulates CUDA's execution model on the CPU, for tests. The threads of a block are fibres that
// switch at barriers; blocks run one after another, so `__shared__` variables can be static. This
// file and device.h define all CUDA names that the kernels use. There are no locks: only one launch
// may run at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __restrict__

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace penstock::emulated {

// Indices of the running fibre.
struct Place {
    dim3 thread, block, block_dim, grid_dim;
};
extern Place place;
// Dynamic shared memory of the running block; filled with NaN before each block.
extern unsigned char* dynamic_shared;
extern size_t dynamic_shared_bytes;

// Runs `body` for each thread of each block. Aborts if threads wait for each other forever.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// Barriers of all threads of the running block, and of the running thread's warp.
void block_barrier();
void warp_barrier();

// Waits until `threads` threads have called this with the same id, 0 to 15.
void wait_at_named(int id, unsigned threads);
// Lets other threads run until `ready` holds. May be called at any time.
void wait_until(const std::function<bool()>& ready);

// Asynchronous copies of the running thread into shared memory, in groups. A copy is done as late
// as CUDA allows: when the thread waits for its group. Until then its destination is filled with
// NaN.
void copy_async(void* to, const void* from, size_t bytes, bool exists);
void commit_copies();
void wait_for_copies(int later);

// Returns 64 bytes of lane `lane` that the lanes of the running thread's warp share between two
// warp barriers.
unsigned char* warp_slot(int lane);

} // namespace penstock::emulated

#define threadIdx (::penstock::emulated::place.thread)
#define blockIdx (::penstock::emulated::place.block)
#define blockDim (::penstock::emulated::place.block_dim)
#define gridDim (::penstock::emulated::place.grid_dim)

inline int max(int left, int right) {
    return left > right ? left : right;
}
inline int min(int left, int right) {
    return left < right ? left : right;
}
inline void __syncthreads() {
    ::penstock::emulated::block_barrier();
}
inline void __syncwarp() {
    ::penstock::emulated::warp_barrier();
}
inline void __threadfence() {}

namespace penstock::emulated {

// Returns the value of lane `from` of the warp, or the lane's own value if `from` is out of range.
template <class T>
T exchanged(T value, int from) {
    static_assert(sizeof(T) <= 64);
    std::memcpy(warp_slot(static_cast<int>(threadIdx.x % 32)), &value, sizeof(T));
    warp_barrier();
    if (from >= 0 && from < 32)
        std::memcpy(&value, warp_slot(from), sizeof(T));
    warp_barrier();
    return value;
}

} // namespace penstock::emulated

template <class T>
T __shfl_sync(unsigned, T value, int from) {
    return penstock::emulated::exchanged(value, from);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return penstock::emulated::exchanged(value, static_cast<int>(threadIdx.x % 32) ^ mask);
}

template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
    return penstock::emulated::exchanged(value, static_cast<int>(threadIdx.x % 32) - by);
}

inline unsigned __ballot_sync(unsigned, bool vote) {
    unsigned votes = vote ? 1u << threadIdx.x % 32 : 0u;
    for (int mask = 16; mask > 0; mask /= 2)
        votes |= __shfl_xor_sync(~0u, votes, mask);
    return votes;
}

inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}
inline int __ffs(unsigned bits) {
    return __builtin_ffs(static_cast<int>(bits));
}

template <class T>
T atomicAdd(T* address, T value) {
    const T before = *address;
    *address = before + value;
    return before;
}
