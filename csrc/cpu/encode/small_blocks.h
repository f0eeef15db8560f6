// The types whose blocks have 32 numbers with a scale of their own. Four blocks are encoded at
// once.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/encode/fit_affine.h"
#include "cpu/encode/fit_scale.h"
#include "cpu/encode/levels.h"
#include "cpu/encode/load_groups.h"
#include "cpu/encode/pack_bits.h"

namespace penstock::cpu::encode {

constexpr float LARGEST_HALF = 65504;

// Rounds a scale per lane to float16, and writes it at the start of each block.
inline Lanes put_halves(uint8_t* out, int size_bytes, Lanes scale) {
    Lanes held;
    for (int lane = 0; lane < LANES; ++lane) {
        const uint16_t half = f32_to_f16(std::clamp(scale[lane], -LARGEST_HALF, LARGEST_HALF));
        put_half(out + lane * size_bytes, half);
        held[lane] = f16_to_f32(half);
    }
    return held;
}

// Encodes blocks with a scale: writes the scales and returns the codes of the elements.
template <class Levels>
void encode_scaled(const float* weights, const float* importance, int size_bytes, int steps,
                   float least, float most, uint8_t* out, uint8_t* codes) {
    Groups<32> groups[1];
    load_groups(weights, importance, groups);
    const Lanes wanted = fit_scale<Levels, 32>(groups[0], steps, least, most);
    const Lanes inverse = quotient(splat(1), put_halves(out, size_bytes, wanted));
    Lanes levels[1][32];
    for (int k = 0; k < 32; ++k) {
        levels[0][k] = Levels::nearest(groups[0].x[k] * inverse);
    }
    store_codes<Levels>(levels, codes);
}

// Encodes blocks with a scale and a minimum, as `encode_scaled`.
template <int TOP>
void encode_affine(const float* weights, const float* importance, int size_bytes, uint8_t* out,
                   uint8_t* codes) {
    Groups<32> groups[1];
    load_groups(weights, importance, groups);
    const auto fit = fit_affine<TOP, 32, Minima::any>(groups[0], 6, -0.5f / TOP, 2.0f / TOP);
    const Lanes inverse = quotient(splat(1), put_halves(out, size_bytes, fit.scale));
    const Lanes minimum = put_halves(out + 2, size_bytes, fit.minimum);
    Lanes levels[1][32];
    for (int k = 0; k < 32; ++k) {
        levels[0][k] = rounded(clamped((groups[0].x[k] - minimum) * inverse, 0, TOP));
    }
    store_codes<Integers<0, TOP>>(levels, codes);
}

// Writes the fifth bits of 32 codes.
inline void put_fifth_bits(uint8_t* out, const uint8_t* codes) {
    std::memset(out, 0, 4);
    for (int k = 0; k < 32; ++k) {
        out[k / 8] = static_cast<uint8_t>(out[k / 8] | (codes[k] >> 4 & 1) << (k % 8));
    }
}

inline void encode_q4_0(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[LANES * 32];
    encode_scaled<Integers<-8, 7>>(weights, importance, 18, 24, 0.6f, 1.5f, out, codes);
    for (int lane = 0; lane < LANES; ++lane) {
        put_nibbles<16>(out + 18 * lane + 2, codes + 32 * lane);
    }
}

inline void encode_q4_1(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[LANES * 32];
    encode_affine<15>(weights, importance, 20, out, codes);
    for (int lane = 0; lane < LANES; ++lane) {
        put_nibbles<16>(out + 20 * lane + 4, codes + 32 * lane);
    }
}

inline void encode_q5_0(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[LANES * 32];
    encode_scaled<Integers<-16, 15>>(weights, importance, 22, 24, 0.7f, 1.4f, out, codes);
    for (int lane = 0; lane < LANES; ++lane) {
        put_fifth_bits(out + 22 * lane + 2, codes + 32 * lane);
        put_nibbles<16>(out + 22 * lane + 6, codes + 32 * lane);
    }
}

inline void encode_q5_1(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[LANES * 32];
    encode_affine<31>(weights, importance, 24, out, codes);
    for (int lane = 0; lane < LANES; ++lane) {
        put_fifth_bits(out + 24 * lane + 4, codes + 32 * lane);
        put_nibbles<16>(out + 24 * lane + 8, codes + 32 * lane);
    }
}

inline void encode_q8_0(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[LANES * 32];
    encode_scaled<Integers<-127, 127>>(weights, importance, 34, 16, 0.95f, 1.1f, out, codes);
    for (int lane = 0; lane < LANES; ++lane) {
        for (int k = 0; k < 32; ++k) { // codes count from -127
            out[34 * lane + 2 + k] = static_cast<uint8_t>(codes[32 * lane + k] - 127);
        }
    }
}

inline void encode_iq4_nl(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[LANES * 32];
    encode_scaled<Iq4>(weights, importance, 18, 20, 0.6f, 1.4f, out, codes);
    for (int lane = 0; lane < LANES; ++lane) {
        put_nibbles<16>(out + 18 * lane + 2, codes + 32 * lane);
    }
}

// Encodes blocks of 4-bit floats. The scale is a power of two: all near the one that fits the
// largest number are tried.
inline void encode_mxfp4(const float* weights, const float* importance, uint8_t* out) {
    constexpr int SIZE = 17, BIAS = 128; // levels are doubled, so that the scale is halved
    Groups<32> groups[1];
    load_groups(weights, importance, groups);
    uint8_t exponents[LANES];
    Lanes largest = splat(0), best = splat(0), best_gain = splat(0);
    for (int k = 0; k < 32; ++k) {
        largest = larger(largest, magnitude(groups[0].x[k]));
    }
    for (int step = -2; step <= 1; ++step) {
        Lanes scale;
        for (int lane = 0; lane < LANES; ++lane) {
            int exponent = 0;
            std::frexp(largest[lane] / Float4::highest, &exponent);
            scale[lane] = std::ldexp(1.0f, std::max(exponent + step, -BIAS));
        }
        const LevelSums sums = level_sums<Float4, 32>(groups[0], splat(1) / scale);
        const Lanes gain = scale * (sums.xc + sums.xc - scale * sums.cc);
        best = select(gain > best_gain, scale, best);
        best_gain = larger(gain, best_gain);
    }
    for (int lane = 0; lane < LANES; ++lane) {
        int exponent = 0;
        std::frexp(best[lane], &exponent);
        exponents[lane] = best[lane] > 0 ? static_cast<uint8_t>(exponent - 1 + BIAS) : 0;
    }
    const Lanes inverse = quotient(splat(1), best);
    uint8_t codes[32];
    for (int lane = 0; lane < LANES; ++lane) {
        for (int k = 0; k < 32; ++k) {
            const Lanes code = Float4::code(Float4::nearest(groups[0].x[k] * inverse));
            const int place = static_cast<int>(code[lane]) - 7; // the table's middle is zero
            codes[k] = static_cast<uint8_t>(place < 0 ? 8 - place : place);
        }
        out[SIZE * lane] = exponents[lane];
        put_nibbles<16>(out + SIZE * lane + 1, codes);
    }
}

} // namespace penstock::cpu::encode
