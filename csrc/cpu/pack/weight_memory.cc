#include "cpu/pack/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace penstock::cpu {
namespace {

constexpr size_t kPage = size_t{2} << 20;
// Address space per chunk; physical pages are allocated when they are first written.
constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr size_t kAlignment = 64;

size_t round_up(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

} // namespace

// A memory mapping from which blocks are allocated, front to back.
class WeightChunk {
  public:
    explicit WeightChunk(size_t bytes) : bytes_(round_up(bytes, kPage)) {
        mapped_bytes_ = bytes_ + kPage;
        mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped_ == MAP_FAILED)
            throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(mapped_);
        begin_ = reinterpret_cast<uint8_t*>(round_up(address, kPage));
        // If this fails, the system uses small pages.
        (void)madvise(begin_, bytes_, MADV_HUGEPAGE);
    }
    ~WeightChunk() { munmap(mapped_, mapped_bytes_); }
    WeightChunk(const WeightChunk&) = delete;
    WeightChunk& operator=(const WeightChunk&) = delete;

    // Returns the next `bytes` bytes, or null if they do not fit.
    uint8_t* take(size_t bytes) {
        if (bytes > bytes_ - used_)
            return nullptr;
        uint8_t* block = begin_ + used_;
        used_ += bytes;
        return block;
    }

  private:
    size_t bytes_;
    size_t mapped_bytes_ = 0;
    void* mapped_ = nullptr;
    uint8_t* begin_ = nullptr;
    size_t used_ = 0;
};

WeightBlock WeightBlock::allocate(size_t bytes) {
    // The chunk being filled; only the blocks allocated from it keep it alive.
    static std::mutex mutex;
    static std::weak_ptr<WeightChunk> current;
    const size_t rounded = round_up(std::max<size_t>(bytes, 1), kAlignment);
    const std::lock_guard lock(mutex);
    std::shared_ptr<WeightChunk> chunk = current.lock();
    uint8_t* data = chunk == nullptr ? nullptr : chunk->take(rounded);
    if (data == nullptr) {
        chunk = std::make_shared<WeightChunk>(std::max(rounded, kChunkBytes));
        data = chunk->take(rounded);
        current = chunk;
    }
    return {std::move(chunk), data};
}

WeightBlock WeightBlock::allocate_unshared(size_t bytes) {
    auto chunk = std::make_shared<WeightChunk>(std::max<size_t>(bytes, 1));
    uint8_t* data = chunk->take(bytes);
    return {std::move(chunk), data};
}

} // namespace penstock::cpu
