// Memory for packed weights, in huge pages. A decode step streams through all of it once, and with
// 4 KiB pages address translation, not memory, limits the speed: 21 GB/s per core instead of 31.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock::cpu {

class WeightChunk;

// Owns `data`. A chunk is returned to the system when its last block is destroyed.
class WeightBlock {
  public:
    WeightBlock() = default;

    // `bytes` bytes, 64-byte aligned, contents undefined. Thread-safe. Many blocks share a huge
    // page, so that small matrices waste no memory. Throws std::bad_alloc.
    static WeightBlock allocate(size_t bytes);

    // Like `allocate`, zeroed, and in a chunk of its own: destroying it returns the memory.
    static WeightBlock allocate_unshared(size_t bytes);

    uint8_t* data() const { return data_; }

  private:
    WeightBlock(std::shared_ptr<WeightChunk> chunk, uint8_t* data)
        : chunk_(std::move(chunk)), data_(data) {}

    std::shared_ptr<WeightChunk> chunk_;
    uint8_t* data_ = nullptr;
};

} // namespace penstock::cpu
