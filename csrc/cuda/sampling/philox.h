// The random numbers of sampling: the first output word of Philox 4x32-10 (Salmon et al., SC 2011).
#pragma once

#include "cuda/device.h"

namespace penstock::cuda {

// Returns the random number for (seed, position): a multiple of 2^-24 in [0, 1).
__host__ __device__ inline float uniform(uint64_t seed, uint64_t position) {
    uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32);
    uint32_t c2 = 0, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = static_cast<uint64_t>(c0) * 0xD2511F53u;
        const uint64_t second = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
        c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(second);
        c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(first);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return static_cast<float>(c0 >> 8) * (1.0f / 16777216.0f);
}

} // namespace penstock::cuda
