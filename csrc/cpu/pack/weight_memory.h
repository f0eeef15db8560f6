// Memory for packed weights, in large pages. A decode step streams through all of it once, and with
// pages of 4 KiB address translation, not memory, sets the speed: 21 GB/s a core against 31.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock::cpu {

class WeightChunk;

// Owns `data`. Blocks of one chunk are returned to the system when the last of them dies.
class WeightBlock {
  public:
    WeightBlock() = default;

    // `bytes` bytes, 64-byte aligned, contents undefined. Safe from any thread. Many blocks share a
    // large page, so small matrices waste nothing. Throws std::bad_alloc.
    static WeightBlock allocate(size_t bytes);

    // The same, zeroed, and in no chunk of others: it is returned when it dies.
    static WeightBlock allocate_apart(size_t bytes);

    uint8_t* data() const { return data_; }

  private:
    WeightBlock(std::shared_ptr<WeightChunk> chunk, uint8_t* data)
        : chunk_(std::move(chunk)), data_(data) {}

    std::shared_ptr<WeightChunk> chunk_;
    uint8_t* data_ = nullptr;
};

} // namespace penstock::cpu
