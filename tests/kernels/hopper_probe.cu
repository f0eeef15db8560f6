// Kernels over csrc/cuda/hopper.h for the tests of its emulation: correct ones and wrong ones.
#include "cuda/tensor_map.h"

#include "cuda/launch.h"

using namespace penstock::cuda;
namespace emulated = penstock::emulated;

namespace {

constexpr int kKeys = 128, kRowBytes = 128;

struct Memory {
    unsigned char left[2][64 * kRowBytes];
    unsigned char right[2][kKeys * kRowBytes];
    uint64_t full, done;
};

struct Maps {
    TensorMap left, right;
};

// The step that a wrong kernel leaves out; the test must notice.
enum Omission { kNothing, kWaitForCopy, kWaitForProducts, kExpectedBytes, kReader, kLaterPhase };

__device__ Memory& memory_of() {
    unsigned char* const given = emulated::dynamic_shared;
    return *reinterpret_cast<Memory*>(given + (1024 - shared_address(given) % 1024) % 1024);
}

__device__ void bring(Memory& memory, const Maps& maps, int omission) {
    barrier_init(&memory.full, 1);
    barrier_init(&memory.done, 1);
    publish_barriers();
    const uint32_t bytes = sizeof memory.left + sizeof memory.right;
    barrier_arrive_expecting(&memory.full, omission == kExpectedBytes ? bytes + 128 : bytes);
    for (int piece = 0; piece < 2; ++piece) {
        const int at[4] = {piece * kBoxColumns, 0, 0, 0};
        copy_box(memory.left[piece], maps.left, &memory.full, at);
        copy_box(memory.right[piece], maps.right, &memory.full, at);
    }
}

// out [64, 128] = left [64, 128] right [128, 128]^T.
__global__ void scores_kernel(float* out, const Maps maps, int omission) {
    Memory& memory = memory_of();
    if (threadIdx.x == 0)
        bring(memory, maps, omission);
    __syncthreads();
    if (omission == kReader && threadIdx.x >= 96)
        return;
    if (omission != kWaitForCopy)
        barrier_wait(&memory.full, omission == kLaterPhase ? 1 : 0);
    float sums[64] = {};
    products_begin();
    for (int k = 0; k < 128; k += 16) {
        const uint32_t at = k % 64 * 2;
        multiply_shared(sums, matrix_descriptor(shared_address(memory.left[k / 64]) + at, 0, 1024),
                        matrix_descriptor(shared_address(memory.right[k / 64]) + at, 0, 1024),
                        k > 0);
    }
    products_commit();
    if (omission != kWaitForProducts)
        products_wait<0>();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 64; ++i)
        out[(row + i / 2 % 2 * 8) * kKeys + column + i / 4 * 8 + i % 2] = sums[i];
    products_wait<0>();
    barrier_wait(&memory.full, 0);
}

// out [64, columns] = weights [64, 128] right [128, columns], weights in registers.
template <int kColumns>
__global__ void outputs_kernel(float* out, const Bf16* weights, const Maps maps, int omission) {
    Memory& memory = memory_of();
    if (threadIdx.x == 0)
        bring(memory, maps, omission);
    __syncthreads();
    barrier_wait(&memory.full, 0);
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sums[kColumns / 2] = {};
    products_begin();
    for (int k = 0; k < kKeys; k += 16) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
            const int at = (row + i % 2 * 8) * kKeys + k + i / 2 * 8 + 2 * t;
            a[i] = weights[at].bits | static_cast<uint32_t>(weights[at + 1].bits) << 16;
        }
        const uint32_t begin = shared_address(memory.right[0]) + k * kRowBytes;
        multiply_registers(sums, a, matrix_descriptor(begin, sizeof memory.right[0], 1024));
    }
    products_commit();
    products_wait<0>();
    for (int i = 0; i < kColumns / 2; ++i)
        out[(row + i / 2 % 2 * 8) * kColumns + 2 * t + i / 4 * 8 + i % 2] = sums[i];
}

int map_of(TensorMap& map, const void* base, int rows) {
    const BoxedTensor tensor{
        base, 2, {128, rows, 1, 1}, {128, 128 * rows, 128 * rows}, {kBoxColumns, rows, 1, 1}};
    return can_be_mapped(tensor) ? make_map(map, tensor) : kRefused;
}

} // namespace

// `blocks`: products arrive late in even blocks and at once in odd ones; the result is that of the last.
extern "C" int probe_scores(float* out, const void* left, const void* right, int blocks,
                            int omission) {
    Maps maps;
    if (map_of(maps.left, left, 64) != 0 || map_of(maps.right, right, kKeys) != 0)
        return kRefused;
    return launch_with_memory(scores_kernel, dim3(blocks), dim3(kGroup), sizeof(Memory) + 1024,
                              nullptr, out, maps, omission);
}

extern "C" int probe_outputs(float* out, const void* weights, const void* right, int columns,
                             int blocks) {
    Maps maps;
    if (map_of(maps.left, weights, 64) != 0 || map_of(maps.right, right, kKeys) != 0)
        return kRefused;
    const auto kernel = columns == 64 ? outputs_kernel<64> : outputs_kernel<128>;
    return launch_with_memory(kernel, dim3(blocks), dim3(kGroup), sizeof(Memory) + 1024, nullptr,
                              out, static_cast<const Bf16*>(weights), maps, kNothing);
}
