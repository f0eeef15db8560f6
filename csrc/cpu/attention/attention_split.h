// How much memory the partial results of split attention take. Standard library only.
#pragma once

#include <cstdint>

namespace penstock::cpu {

// Keys are summed in spans of this many, aligned to absolute positions, whose results are merged
// in order. The spans are part of the arithmetic; where they are computed is not.
constexpr int64_t kAttentionSpan = 256;

// A step with fewer tasks (token x KV head) than this is split further, over spans.
constexpr int64_t kAttentionSplitBelow = 32;

// Floats of one span's result for one query head: D sums (padded), highest score, mass.
constexpr int64_t attention_partial_stride(int64_t dim) {
    return (dim + 15) / 16 * 16 + 16;
}

// Floats that the `partials` tensor of `paged_attention` needs so that every step that should be
// split can be. `max_context` is the longest context: max_blocks * P.
constexpr int64_t attention_partial_floats(int64_t heads, int64_t kv_heads, int64_t dim,
                                           int64_t max_context) {
    const int64_t spans = (max_context + kAttentionSpan - 1) / kAttentionSpan;
    const int64_t tokens = (kAttentionSplitBelow - 1) / kv_heads;
    return spans <= 1 ? 0 : tokens * spans * heads * attention_partial_stride(dim);
}

} // namespace penstock::cpu
