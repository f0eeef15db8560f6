// Writes codes and scales in the order of GGML's blocks.
#pragma once

#include <cstdint>
#include <cstring>

namespace penstock::cpu::encode {

inline void put_half(uint8_t* out, uint16_t half) {
    std::memcpy(out, &half, 2);
}

// Writes 2 * N codes of 4 bits: byte i has code i in its low nibble and code N + i in its high one.
template <int N>
void put_nibbles(uint8_t* out, const uint8_t* codes) {
    for (int i = 0; i < N; ++i) {
        out[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[N + i] & 15) << 4);
    }
}

// Writes bit `from` of 256 codes: bit s of byte i belongs to code 32 * s + i.
inline void put_bit_runs(uint8_t* out, const uint8_t* codes, int from) {
    std::memset(out, 0, 32);
    for (int i = 0; i < 256; ++i) {
        out[i % 32] = static_cast<uint8_t>(out[i % 32] | (codes[i] >> from & 1) << (i / 32));
    }
}

// Writes the bits `from` and `from` + 1 of 256 codes: each half of them has 32 bytes, whose bit
// pairs belong to four runs of 32 codes.
inline void put_pair_runs(uint8_t* out, const uint8_t* codes, int from) {
    std::memset(out, 0, 64);
    for (int i = 0; i < 256; ++i) {
        uint8_t& byte = out[i / 128 * 32 + i % 32];
        byte = static_cast<uint8_t>(byte | (codes[i] >> from & 3) << (2 * (i / 32 % 4)));
    }
}

// Writes the 6-bit scales and minima of the eight groups of Q4_K and Q5_K into 12 bytes.
inline void put_scales_and_minima(uint8_t* out, const uint8_t* scales, const uint8_t* minima) {
    for (int j = 0; j < 4; ++j) {
        const int scale = scales[4 + j], minimum = minima[4 + j];
        out[j] = static_cast<uint8_t>(scales[j] | scale >> 4 << 6);
        out[4 + j] = static_cast<uint8_t>(minima[j] | minimum >> 4 << 6);
        out[8 + j] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
    }
}

// Writes the 16 scales of 6 bits of Q3_K into 12 bytes.
inline void put_16_scales(uint8_t* out, const uint8_t* scales) {
    put_nibbles<8>(out, scales);
    std::memset(out + 8, 0, 4);
    for (int j = 0; j < 16; ++j) {
        out[8 + j % 4] = static_cast<uint8_t>(out[8 + j % 4] | scales[j] >> 4 << (2 * (j / 4)));
    }
}

} // namespace penstock::cpu::encode
