// Linux calls that older C libraries do not declare, and small wrappers.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace penstock::sandbox {

// An open file descriptor, closed at the end of its scope.
class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor() {
        if (fd_ >= 0)
            close(fd_);
    }

    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }
    explicit operator bool() const { return fd_ >= 0; }

  private:
    int fd_;
};

// A failed step of the set-up. `layer` is empty if the step succeeded.
struct Failure {
    std::string layer;
    std::string reason;
    explicit operator bool() const { return !layer.empty(); }
};

inline Failure failure(std::string layer, std::string step) {
    return {std::move(layer), std::move(step) + ": " + strerror(errno)};
}

namespace sys {

// The numbers are the same on x86_64 and aarch64.
constexpr long kOpenTree = 428, kMoveMount = 429, kFsOpen = 430, kFsConfig = 431, kFsMount = 432;
constexpr long kCloseRange = 436, kOpenat2 = 437, kMountSetattr = 442;
constexpr long kLandlockCreate = 444, kLandlockAdd = 445, kLandlockRestrict = 446;

struct OpenHow {
    uint64_t flags, mode, resolve;
};
constexpr uint64_t kResolveNoXdev = 1, kResolveNoMagiclinks = 2, kResolveNoSymlinks = 4;
constexpr uint64_t kResolveBeneath = 8;

struct MountAttr {
    uint64_t set, clear, propagation, userns;
};
constexpr uint64_t kMountReadOnly = 1, kMountNoSuid = 2, kMountNoDev = 4, kMountNoExec = 8;
constexpr unsigned kOpenTreeClone = 1, kRecursive = 0x8000, kEmptyPath = 0x1000;
constexpr unsigned kMoveFromEmpty = 4, kMoveToEmpty = 0x40;
constexpr unsigned kFsSetString = 1, kFsCreate = 6;

inline int openat2(int folder, const char* path, uint64_t flags, uint64_t mode, uint64_t resolve) {
    OpenHow how{flags, mode, resolve};
    return static_cast<int>(syscall(kOpenat2, folder, path, &how, sizeof how));
}
inline int open_tree(int folder, const char* path, unsigned flags) {
    return static_cast<int>(syscall(kOpenTree, folder, path, flags | O_CLOEXEC));
}
inline int mount_setattr(int tree, unsigned flags, uint64_t set) {
    MountAttr attributes{set, 0, 0, 0};
    return static_cast<int>(
        syscall(kMountSetattr, tree, "", flags | kEmptyPath, &attributes, sizeof attributes));
}
// Closes every descriptor from `first` on.
inline void close_from(unsigned first) {
    if (syscall(kCloseRange, first, ~0u, 0) == 0)
        return;
    for (int fd = static_cast<int>(first); fd < 65536; ++fd)
        close(fd);
}

} // namespace sys
} // namespace penstock::sandbox
