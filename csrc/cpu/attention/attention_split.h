// Sizes the partial results of split attention. Depends on the standard library only.
#pragma once

#include <cstdint>

namespace penstock::cpu {

// Keys are summed in spans of this length, aligned to absolute positions; the results of spans are
// merged in order. The division into spans affects the result; the assignment of spans to tasks
// does not.
constexpr int64_t kAttentionSpan = 256;

// A step with fewer tasks (token x KV head) than this is also divided by spans.
constexpr int64_t kAttentionSplitBelow = 32;

// Returns the floats of one span's result for one query head: D sums (padded), highest score,
// softmax sum.
constexpr int64_t attention_partial_stride(int64_t dim) {
    return (dim + 15) / 16 * 16 + 16;
}

// Returns the size in floats of the `partials` tensor of `paged_attention`, enough for every step
// that should be split. `max_context` is the longest context: max_blocks * P.
constexpr int64_t attention_partial_floats(int64_t heads, int64_t kv_heads, int64_t dim,
                                           int64_t max_context) {
    const int64_t spans = (max_context + kAttentionSpan - 1) / kAttentionSpan;
    const int64_t tokens = (kAttentionSplitBelow - 1) / kv_heads;
    return spans <= 1 ? 0 : tokens * spans * heads * attention_partial_stride(dim);
}

// Latent attention divides its query heads, which all read one KV head, into parts of at least this
// many heads if a step has few tasks.
constexpr int64_t kLatentPartHeads = 16;

// The most floats of the partial results of latent attention. Steps that need more are not split.
constexpr int64_t kLatentPartialFloats = int64_t{32} << 20;

// Returns the most parts into which `heads` query heads may be divided, a power of two.
constexpr int64_t latent_parts(int64_t heads) {
    int64_t parts = 1;
    while (heads % (2 * parts) == 0 && heads / (2 * parts) >= kLatentPartHeads)
        parts *= 2;
    return parts;
}

// Returns the size in floats of the `partials` tensor of `latent_attention`; see
// `attention_partial_floats`.
constexpr int64_t latent_partial_floats(int64_t heads, int64_t latent, int64_t max_context) {
    const int64_t spans = (max_context + kAttentionSpan - 1) / kAttentionSpan;
    const int64_t tokens = (kAttentionSplitBelow - 1) / latent_parts(heads);
    const int64_t floats = tokens * spans * heads * attention_partial_stride(latent);
    return spans <= 1 ? 0 : floats < kLatentPartialFloats ? floats : kLatentPartialFloats;
}

} // namespace penstock::cpu
