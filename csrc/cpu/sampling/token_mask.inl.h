// Sets the logits of tokens that a grammar forbids to -inf. Included by adjust_logits.inl.h.
#pragma once

#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

constexpr int64_t kWordBits = 32;

// Masks logits [0, n): sets logits[i] to -inf unless bit i of `word` is set.
PENSTOCK_INLINE void mask_word(float* logits, uint32_t word, int64_t n) {
    alignas(64) constexpr int32_t kBits[16] = {
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    const F32 forbidden = broadcast(-__builtin_inff());
    for (int64_t i = 0; i < n; i += kLanes) {
        const auto part = static_cast<int32_t>(word >> i & ((1U << kLanes) - 1));
        const I32 set = broadcast(part) & load(kBits);
        const Mask unset = equal(to_float(set), broadcast(0.0f));
        const int lanes = lanes_from(i, n);
        const F32 x = load_lanes(logits + i, lanes);
        store_lanes(logits + i, select(unset, forbidden, x), lanes);
    }
}

// Applies a mask to all V logits. Returns false if the mask allows none of the tokens.
PENSTOCK_INLINE bool apply_mask(float* logits, const uint32_t* words, int64_t vocabulary) {
    uint32_t any_allowed = 0;
    int64_t i = 0;
    for (; i + kWordBits <= vocabulary; i += kWordBits) {
        const uint32_t word = words[i / kWordBits];
        any_allowed |= word;
        if (word == 0) {
            for (int64_t lane = 0; lane < kWordBits; lane += kLanes)
                store(logits + i + lane, broadcast(-__builtin_inff()));
        } else if (word != UINT32_MAX) {
            mask_word(logits + i, word, kWordBits);
        }
    }
    if (i < vocabulary) {
        const uint32_t word = words[i / kWordBits] & ((1U << (vocabulary - i)) - 1);
        any_allowed |= word;
        mask_word(logits + i, word, vocabulary - i);
    }
    return any_allowed != 0;
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
