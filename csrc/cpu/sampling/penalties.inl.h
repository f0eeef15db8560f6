// Presence, frequency and repetition penalties for the tokens that a row has seen. Included by
// adjust_logits.inl.h.
#pragma once

#include "cpu/sampling/logit_bias.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

struct Penalties {
    float presence, frequency, repetition;
};

// Applies the penalties to the tokens of one row. `counts`: occurrences of each token in the
// answer; 0 if only the prompt contains it.
PENSTOCK_INLINE void penalize(float* logits, Span span, const int32_t* tokens,
                              const int32_t* counts, Penalties penalties) {
    for (int64_t i = span.begin; i < span.end; ++i) {
        const float before = logits[tokens[i]];
        float x = before;
        if (counts[i] > 0) {
            const float cost =
                penalties.presence + penalties.frequency * static_cast<float>(counts[i]);
            x = saturated(x - cost, before);
        }
        x = x > 0.0f ? x / penalties.repetition : x * penalties.repetition;
        logits[tokens[i]] = saturated(x, before);
    }
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
