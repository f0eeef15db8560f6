// Memory for packed weights, in huge pages. A decode step reads all packed weights once; with pages
// of 4 KiB, address translation instead of memory would limit the speed, to 21 GB/s per core
// instead of 31.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock::cpu {

class WeightChunk;

// Owns `data`. The chunk is returned to the system when its last block is destroyed.
class WeightBlock {
  public:
    WeightBlock() = default;

    // Returns `bytes` bytes, 64-byte aligned, with undefined contents. Thread-safe. Many blocks
    // share a huge page, so that small matrices waste no memory. Throws std::bad_alloc.
    static WeightBlock allocate(size_t bytes);

    // Returns `bytes` zeroed bytes in a separate chunk: destroying the block returns its memory.
    static WeightBlock allocate_unshared(size_t bytes);

    uint8_t* data() const { return data_; }

  private:
    WeightBlock(std::shared_ptr<WeightChunk> chunk, uint8_t* data)
        : chunk_(std::move(chunk)), data_(data) {}

    std::shared_ptr<WeightChunk> chunk_;
    uint8_t* data_ = nullptr;
};

} // namespace penstock::cpu
