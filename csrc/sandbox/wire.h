// The protocol between the server and a container's init: one frame per packet of a SOCK_SEQPACKET
// socket. Numbers are little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::sandbox {

enum class Kind : uint16_t {
    // from the server
    spec = 1,
    spawn = 2,
    signal = 3,
    write_begin = 4,
    write_data = 5,
    write_end = 6,
    read = 7,
    list = 8,
    kill_others = 9,
    stats = 10,
    write_abort = 11,
    // from the init
    ready = 64,
    failed = 65,
    spawned = 66,
    exited = 67,
    done = 68,
    file_error = 69,
    file_size = 70,
    file_data = 71,
    entries = 72,
    listed = 73,
    usage = 74,
};

// A frame is this header and a payload of at most kMaxPayload bytes.
struct Header {
    uint16_t kind;
    uint16_t reserved;
    uint32_t request;
};
static_assert(sizeof(Header) == 8);

constexpr size_t kMaxPayload = 60 * 1024;
constexpr size_t kMaxFrame = sizeof(Header) + kMaxPayload;
constexpr int kMaxDescriptors = 3;

// Reads the fields of a payload. After a read past the end, `ok` is false and fields are empty.
class Reader {
  public:
    explicit Reader(std::string_view bytes) : rest_(bytes) {}

    uint32_t u32() { return number<uint32_t>(); }
    uint64_t u64() { return number<uint64_t>(); }
    std::string_view text();
    std::vector<std::string> texts();
    std::string_view rest();

    // True if every read succeeded and nothing is left.
    bool finished() const { return ok_ && rest_.empty(); }
    bool ok() const { return ok_; }

  private:
    template <typename T>
    T number();

    std::string_view rest_;
    bool ok_ = true;
};

class Writer {
  public:
    Writer& u32(uint32_t value);
    Writer& u64(uint64_t value);
    Writer& text(std::string_view value);
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

std::string frame(Kind kind, uint32_t request, std::string_view payload);

struct Received {
    enum class State { frame, nothing, closed, garbage } state;
    Header header{};
    std::string payload;
    std::vector<int> descriptors;
};

// Receives one frame. `nothing`: the socket is non-blocking and empty. After `garbage`, the
// descriptors that came with the packet are closed.
Received receive(int socket);

// Sends one frame. Returns 0, or the errno.
int send_frame(int socket, const std::string& bytes, int flags);

} // namespace penstock::sandbox
