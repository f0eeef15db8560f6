// A memory buffer aligned to a cache line. Depends on the standard library only.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace penstock {

inline constexpr size_t alignment_bytes = 64;

constexpr size_t round_up(size_t bytes, size_t step) {
    return (bytes + step - 1) / step * step;
}

// Owns memory whose contents are initially undefined. Throws std::bad_alloc. Untouched pages use no
// physical memory.
class AlignedBuffer {
  public:
    AlignedBuffer() = default;

    explicit AlignedBuffer(size_t bytes) : bytes_(round_up(bytes, alignment_bytes)) {
        if (bytes_ != 0) {
            data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, bytes_)));
            if (!data_) {
                throw std::bad_alloc();
            }
        }
    }

    std::byte* data() const { return data_.get(); }
    size_t bytes() const { return bytes_; }

  private:
    struct Free {
        void operator()(std::byte* data) const { std::free(data); }
    };
    size_t bytes_ = 0;
    std::unique_ptr<std::byte, Free> data_;
};

} // namespace penstock
