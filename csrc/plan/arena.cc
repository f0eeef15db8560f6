#include "plan/arena.h"

#include <algorithm>
#include <numeric>

#include "plan/aligned_buffer.h"

namespace penstock {
namespace {

bool overlap(const Lifetime& a, const Lifetime& b) {
    return a.first <= b.last && b.first <= a.last;
}

} // namespace

ArenaLayout place(std::span<const Lifetime> lifetimes) {
    std::vector<size_t> order(lifetimes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

    ArenaLayout layout{std::vector<size_t>(lifetimes.size()), 0};
    std::vector<size_t> placed; // indices of the placed buffers, sorted by offset
    for (const size_t buffer : order) {
        const size_t bytes = round_up(lifetimes[buffer].bytes, alignment_bytes);
        size_t offset = 0;
        for (const size_t other : placed) {
            if (!overlap(lifetimes[buffer], lifetimes[other])) {
                continue;
            }
            if (offset + bytes <= layout.offsets[other]) {
                break;
            }
            offset = std::max(offset, layout.offsets[other] +
                                          round_up(lifetimes[other].bytes, alignment_bytes));
        }
        layout.offsets[buffer] = offset;
        layout.bytes = std::max(layout.bytes, offset + bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                       [&](size_t a, size_t b) {
                                           return layout.offsets[a] < layout.offsets[b];
                                       }),
                      buffer);
    }
    return layout;
}

} // namespace penstock
