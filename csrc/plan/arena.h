// Assigns the buffers of a plan to offsets in one arena: first fit over the buffers' lifetimes.
// Depends on the standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// A buffer that is first written in step `first` and last read in step `last`, inclusive.
struct Lifetime {
    int32_t first = 0;
    int32_t last = 0;
    size_t bytes = 0;
};

struct ArenaLayout {
    std::vector<size_t> offsets; // one per lifetime, multiples of alignment_bytes
    size_t bytes = 0;
};

// Returns an offset for each buffer. Two buffers share bytes only if no step needs both. Larger
// buffers are placed first, each at the lowest offset that is free for the buffer's whole lifetime.
ArenaLayout place(std::span<const Lifetime> lifetimes);

} // namespace penstock
