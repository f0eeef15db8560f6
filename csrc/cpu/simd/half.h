// Conversions between float32 and the 16-bit floats, for code that must not use F16C instructions.
// The functions have internal linkage because this header is compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock::cpu {

PENSTOCK_INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

PENSTOCK_INLINE float bits_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Converts exactly. NaNs stay NaNs (made quiet).
PENSTOCK_INLINE float f16_to_f32(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
    if (magnitude >= (0x7c00u << 13)) {
        const uint32_t quiet = magnitude > (0x7c00u << 13) ? 0x00400000u : 0u;
        return bits_float(sign | (magnitude + 0x70000000u) | quiet);
    }
    // Scaling by 2^112 moves the exponent bias and normalizes subnormals in one multiplication.
    return bits_float(sign | float_bits(bits_float(magnitude) * 0x1p112f));
}

// Rounds half to even and overflows to infinity, like VCVTPS2PH.
PENSTOCK_INLINE uint16_t f32_to_f16(float value) {
    const uint32_t bits = float_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {
        // Subnormal halves are multiples of 2^-24: adding 0.5 leaves the rounded multiple in the
        // low bits of the sum.
        half = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
}

PENSTOCK_INLINE float bf16_to_f32(uint16_t value) {
    return bits_float(static_cast<uint32_t>(value) << 16);
}

// Rounds half to even; NaNs stay NaNs.
PENSTOCK_INLINE uint16_t f32_to_bf16(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

} // namespace penstock::cpu
