// The types whose blocks have 256 numbers in groups with multipliers of common scales.
#pragma once

#include "cpu/encode/levels.h"
#include "cpu/encode/load_groups.h"
#include "cpu/encode/pack_bits.h"
#include "cpu/encode/super_affine.h"
#include "cpu/encode/super_scale.h"

namespace penstock::cpu::encode {

inline void encode_q2_k(const float* weights, const float* importance, uint8_t* out) {
    Groups<16> groups[4];
    load_groups(weights, importance, groups);
    const auto block = SuperAffineFit<3, 4, 16, 15>(groups).fit(6, -0.05f, 0.4f, 5);
    uint8_t codes[256], scales[16], minima[16];
    store_codes<Integers<0, 3>>(block.level, codes);
    store_multipliers(block.multiplier, 0, scales);
    store_multipliers(block.minimum_multiplier, 0, minima);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<uint8_t>(scales[j] | minima[j] << 4);
    }
    put_pair_runs(out + 16, codes, 0);
    put_half(out + 80, block.scale);
    put_half(out + 82, block.minimum);
}

inline void encode_q3_k(const float* weights, const float* importance, uint8_t* out) {
    Groups<16> groups[4];
    load_groups(weights, importance, groups);
    using Levels = Integers<-4, 3>;
    const auto block = SuperScaleFit<Levels, 4, 16, -32, 31>(groups).fit(24, 0.5f, 1.6f);
    uint8_t codes[256], scales[16];
    store_codes<Levels>(block.level, codes);
    store_multipliers(block.multiplier, 32, scales);
    put_bit_runs(out, codes, 2);
    put_pair_runs(out + 32, codes, 0);
    put_16_scales(out + 96, scales);
    put_half(out + 108, block.scale);
}

// Encodes what Q4_K and Q5_K have in common: the first 16 bytes and the codes.
template <int TOP>
void encode_q45_k(const float* weights, const float* importance, uint8_t* out, uint8_t* codes) {
    Groups<32> groups[2];
    load_groups(weights, importance, groups);
    const auto block = SuperAffineFit<TOP, 2, 32, 63>(groups).fit(6, -0.5f / TOP, 2.0f / TOP, 2);
    uint8_t scales[8], minima[8];
    store_codes<Integers<0, TOP>>(block.level, codes);
    store_multipliers(block.multiplier, 0, scales);
    store_multipliers(block.minimum_multiplier, 0, minima);
    put_half(out, block.scale);
    put_half(out + 2, block.minimum);
    put_scales_and_minima(out + 4, scales, minima);
}

inline void encode_q4_k(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[256];
    encode_q45_k<15>(weights, importance, out, codes);
    for (int run = 0; run < 4; ++run) {
        put_nibbles<32>(out + 16 + 32 * run, codes + 64 * run);
    }
}

inline void encode_q5_k(const float* weights, const float* importance, uint8_t* out) {
    uint8_t codes[256];
    encode_q45_k<31>(weights, importance, out, codes);
    put_bit_runs(out + 16, codes, 4);
    for (int run = 0; run < 4; ++run) {
        put_nibbles<32>(out + 48 + 32 * run, codes + 64 * run);
    }
}

inline void encode_q6_k(const float* weights, const float* importance, uint8_t* out) {
    Groups<16> groups[4];
    load_groups(weights, importance, groups);
    using Levels = Integers<-32, 31>;
    const auto block = SuperScaleFit<Levels, 4, 16, -128, 127>(groups).fit(20, 0.75f, 1.2f);
    uint8_t codes[256];
    store_codes<Levels>(block.level, codes);
    put_nibbles<64>(out, codes);
    put_nibbles<64>(out + 64, codes + 128);
    put_pair_runs(out + 128, codes, 4);
    store_multipliers(block.multiplier, 0, out + 192);
    put_half(out + 208, block.scale);
}

inline void encode_iq4_xs(const float* weights, const float* importance, uint8_t* out) {
    Groups<32> groups[2];
    load_groups(weights, importance, groups);
    const auto block = SuperScaleFit<Iq4, 2, 32, -32, 31>(groups).fit(16, 0.6f, 1.4f);
    uint8_t codes[256], scales[8];
    store_codes<Iq4>(block.level, codes);
    store_multipliers(block.multiplier, 32, scales);
    put_half(out, block.scale);
    uint16_t high = 0;
    std::memset(out + 4, 0, 4);
    for (int j = 0; j < 8; ++j) {
        high = static_cast<uint16_t>(high | scales[j] >> 4 << (2 * j));
        out[4 + j / 2] = static_cast<uint8_t>(out[4 + j / 2] | (scales[j] & 15) << (4 * (j % 2)));
        put_nibbles<16>(out + 8 + 16 * j, codes + 32 * j);
    }
    put_half(out + 2, high);
}

} // namespace penstock::cpu::encode
