// Device primitives: bfloat16 and e4m3, 16-byte loads, asynchronous copies, warp sums, tensor-core
// products. nvcc compiles them to PTX; other compilers emulate them with the same semantics.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef PENSTOCK_EMULATED
#include "cuda/emulated.h"
#else
#include <cuda_runtime.h>
#endif

namespace penstock::cuda {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct Bf16 {
    uint16_t bits;
};

// An 8-bit float of a KV cache: 1 sign bit, 4 exponent bits, 3 mantissa bits, no infinity.
struct E4m3 {
    uint8_t bits;
};

// 16 bytes: eight bfloat16.
struct alignas(16) Words4 {
    uint32_t word[4];
};

// 8 bytes: eight e4m3.
struct alignas(8) Words2 {
    uint32_t word[2];
};

__device__ __forceinline__ float as_float(uint32_t bits) {
#ifdef PENSTOCK_EMULATED
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
#else
    return __uint_as_float(bits);
#endif
}

__device__ __forceinline__ uint32_t as_bits(float value) {
#ifdef PENSTOCK_EMULATED
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
#else
    return __float_as_uint(value);
#endif
}

// Return the first (lower) and the second bfloat16 of a word as floats.
__device__ __forceinline__ float low_half(uint32_t word) {
    return as_float(word << 16);
}
__device__ __forceinline__ float high_half(uint32_t word) {
    return as_float(word & 0xffff0000u);
}

// Rounds two floats to bfloat16, to nearest even, and packs them with `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
#ifdef PENSTOCK_EMULATED
    const auto rounded = [](float value) -> uint32_t {
        const uint32_t bits = as_bits(value);
        if (std::isnan(value))
            return 0x7fff;
        return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    };
    return rounded(low) | rounded(high) << 16;
#else
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#endif
}

__device__ __forceinline__ Bf16 to_bf16(float value) {
    return Bf16{static_cast<uint16_t>(pack_bf16(value, 0.0f) & 0xffffu)};
}

__device__ __forceinline__ void unpack(const Words4& words, float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = low_half(words.word[i]);
        values[2 * i + 1] = high_half(words.word[i]);
    }
}

__device__ __forceinline__ Words4 pack(const float (&values)[8]) {
    Words4 words;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        words.word[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    return words;
}

__device__ __forceinline__ Words4 load16(const void* address) {
    return *static_cast<const Words4*>(address);
}

__device__ __forceinline__ void store16(void* address, const Words4& words) {
    *static_cast<Words4*>(address) = words;
}

// Stores four floats by one 16-byte store.
__device__ __forceinline__ void store_floats(float* address, float first, float second, float third,
                                             float fourth) {
    store16(address, Words4{{as_bits(first), as_bits(second), as_bits(third), as_bits(fourth)}});
}

// Loads 16 bytes that are read once and not written during the launch, bypassing L1.
__device__ __forceinline__ Words4 stream16(const void* address) {
#ifdef PENSTOCK_EMULATED
    return load16(address);
#else
    Words4 words;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]),
                   "=r"(words.word[3])
                 : "l"(address));
    return words;
#endif
}

// Loads 16 bytes like stream16 if `wanted`; otherwise leaves `words` unchanged and reads no memory.
__device__ __forceinline__ void stream16_where(bool wanted, Words4& words, const void* address) {
#ifdef PENSTOCK_EMULATED
    if (wanted)
        words = load16(address);
#else
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.b32 wanted, %5, 0;\n"
                 "@wanted ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(words.word[0]), "+r"(words.word[1]), "+r"(words.word[2]),
                   "+r"(words.word[3])
                 : "l"(address), "r"(static_cast<int>(wanted)));
#endif
}

// Selects bytes of (first, second) by the hexadecimal digits of `selector`, like the instruction
// PRMT.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t first, uint32_t second,
                                                  uint32_t selector) {
#ifdef PENSTOCK_EMULATED
    const uint64_t both = static_cast<uint64_t>(second) << 32 | first;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t digit = selector >> (4 * i) & 7;
        result |= static_cast<uint32_t>(both >> (8 * digit) & 0xff) << (8 * i);
    }
    return result;
#else
    return __byte_perm(first, second, selector);
#endif
}

// Widens two e4m3 to two bfloat16, exactly. Moved to the positions of a bfloat16, the bits of an
// e4m3 are its value times 2^-120, also for subnormals; a multiplication by 2^120 restores it.
// (NaN, which is never stored, becomes 480.)
__device__ __forceinline__ uint32_t widen_pair(uint32_t spread) {
    const uint32_t small = (spread & 0x80008000u) | (spread & 0x7f007f00u) >> 4;
#ifdef PENSTOCK_EMULATED
    constexpr float kFactor = 0x1p120f;
    return pack_bf16(low_half(small) * kFactor, high_half(small) * kFactor);
#else
    uint32_t word;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(word)
        : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u)); // 2^120, -0
    return word;
#endif
}

// Widens eight e4m3 to bfloat16.
__device__ __forceinline__ Words4 widen(const uint32_t (&bytes)[2]) {
    Words4 words;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        words.word[i] = widen_pair(permute_bytes(bytes[i / 2], 0, i % 2 ? 0x3424 : 0x1404));
    return words;
}

// Starts an asynchronous copy of 16 bytes into shared memory; copies zeros if the source does not
// exist.
__device__ __forceinline__ void copy_async(Words4* to, const void* from, bool exists) {
#ifdef PENSTOCK_EMULATED
    emulated::copy_async(to, from, sizeof *to, exists);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
#endif
}

// Commits the copies that this thread started since the last commit as a group, which may be empty.
__device__ __forceinline__ void commit_copies() {
#ifdef PENSTOCK_EMULATED
    emulated::commit_copies();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `kLater` of this thread's groups are in flight. Other threads see the copied
// data only after a barrier.
template <int kLater>
__device__ __forceinline__ void wait_for_copies() {
#ifdef PENSTOCK_EMULATED
    emulated::wait_for_copies(kLater);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

// Converts eight elements of a KV cache, as they were copied, to bfloat16.
__device__ __forceinline__ Words4 as_bf16(const Words4& copied) {
    return copied;
}
__device__ __forceinline__ Words4 as_bf16(const Words2& copied) {
    return widen(copied.word);
}

// Loads eight elements of a KV cache in its own format, from memory that is read once.
__device__ __forceinline__ Words4 stream_raw(const Bf16* address) {
    return stream16(address);
}
__device__ __forceinline__ Words2 stream_raw(const E4m3* address) {
    Words2 words;
#ifdef PENSTOCK_EMULATED
    std::memcpy(&words, address, sizeof words);
#else
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words.word[0]), "=r"(words.word[1])
                 : "l"(address));
#endif
    return words;
}

// Rounds a float to e4m3, to nearest even and saturating.
__device__ __forceinline__ E4m3 to_e4m3(float value) {
    const uint32_t sign = as_bits(value) >> 24 & 0x80;
    const float size = fabsf(value);
    uint32_t bits = 0x7e; // 448
    if (size != size) {
        bits = 0x7f;
    } else if (size < 0x1p-6f) {
        bits = static_cast<uint32_t>(rintf(size * 0x1p9f));
    } else if (size < 448.0f) {
        const uint32_t word = as_bits(size);
        bits = ((word + 0x7ffff + (word >> 20 & 1)) >> 20) - (120 << 3);
    }
    return E4m3{static_cast<uint8_t>(sign | bits)};
}

// Loads a float that another block wrote during this launch, from L2.
__device__ __forceinline__ float load_shared_cache(const float* address) {
#ifdef PENSTOCK_EMULATED
    return *address;
#else
    return __ldcg(address);
#endif
}

// Loads four floats that another block wrote during this launch, at a multiple of 16 bytes.
__device__ __forceinline__ Words4 load16_shared_cache(const float* address) {
#ifdef PENSTOCK_EMULATED
    return load16(address);
#else
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(address));
    return Words4{{words.x, words.y, words.z, words.w}};
#endif
}

// Waits until all earlier kernels on the stream have ended and their writes are visible. A kernel
// launched with `Setting::kOverlap` calls this in every thread before it reads memory that another
// kernel may write, and before it writes any memory.
__device__ __forceinline__ void wait_for_earlier() {
#if !defined(PENSTOCK_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel on the stream to start once every block has called this. The next kernel
// still waits for the end of this one before it reads or writes.
__device__ __forceinline__ void let_later_start() {
#if !defined(PENSTOCK_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

constexpr float kLog2e = 1.44269504088896341f;

// Returns 2^x, computed by the special function unit: exact at -inf, within 2 ulp elsewhere.
__device__ __forceinline__ float power_of_two(float x) {
#ifdef PENSTOCK_EMULATED
    return std::exp2(x);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

// Returns x y + z, rounded once.
__device__ __forceinline__ float fused_multiply_add(float x, float y, float z) {
#ifdef PENSTOCK_EMULATED
    return std::fma(x, y, z);
#else
    return __fmaf_rn(x, y, z);
#endif
}

// Returns the number of leading zeros of a nonzero word.
__device__ __forceinline__ int leading_zeros(uint32_t word) {
#ifdef PENSTOCK_EMULATED
    return __builtin_clz(word);
#else
    return __clz(static_cast<int>(word));
#endif
}

// Returns the sum over the warp, the same in every lane, added in a fixed order.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2)
        value += __shfl_xor_sync(kWholeWarp, value, mask);
    return value;
}

// Computes sum += a b for a [16, 16] in rows, b [16, 8] in columns, sum [16, 8]: bfloat16 operands,
// float32 sums. With g = lane / 4 and t = lane % 4, a lane holds:
//   a[0]: row g, k 2t and 2t + 1; a[1]: row g + 8; a[2]: row g, k + 8; a[3]: row g + 8, k + 8
//   b[0]: column g, k 2t and 2t + 1; b[1]: k + 8
//   sum[0], sum[1]: row g, columns 2t and 2t + 1; sum[2], sum[3]: row g + 8
__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
#ifdef PENSTOCK_EMULATED
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    std::memcpy(emulated::warp_slot(lane), mine, sizeof mine);
    emulated::warp_barrier();
    const auto held = [](int from, int index) {
        uint32_t word;
        std::memcpy(&word, emulated::warp_slot(from) + 4 * index, sizeof word);
        return word;
    };
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4, column = lane % 4 * 2 + i % 2;
        float total = 0.0f;
        for (int k = 0; k < 16; ++k) {
            const uint32_t left = held(row * 4 + k % 8 / 2, (k / 8) * 2 + i / 2);
            const uint32_t right = held(column * 4 + k % 8 / 2, 4 + k / 8);
            total += (k % 2 ? high_half(left) : low_half(left)) *
                     (k % 2 ? high_half(right) : low_half(right));
        }
        sum[i] += total;
    }
    emulated::warp_barrier();
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

} // namespace penstock::cuda
