#include "sandbox/wire.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

namespace penstock::sandbox {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

template <typename T>
T Reader::number() {
    T value = 0;
    if (rest_.size() < sizeof value) {
        ok_ = false;
        rest_ = {};
        return 0;
    }
    memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
}

template uint32_t Reader::number<uint32_t>();
template uint64_t Reader::number<uint64_t>();

std::string_view Reader::text() {
    const uint32_t size = u32();
    if (!ok_ || rest_.size() < size) {
        ok_ = false;
        rest_ = {};
        return {};
    }
    const std::string_view value = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return value;
}

std::vector<std::string> Reader::texts() {
    const uint32_t count = u32();
    std::vector<std::string> values;
    // Every text takes four bytes at least, so a wrong count cannot reserve much memory.
    if (count > rest_.size() / sizeof(uint32_t)) {
        ok_ = false;
        return values;
    }
    values.reserve(count);
    for (uint32_t i = 0; i < count && ok_; ++i)
        values.emplace_back(text());
    return values;
}

std::string_view Reader::rest() {
    const std::string_view value = rest_;
    rest_ = {};
    return value;
}

Writer& Writer::u32(uint32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
}

Writer& Writer::u64(uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
}

Writer& Writer::text(std::string_view value) {
    u32(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
}

std::string frame(Kind kind, uint32_t request, std::string_view payload) {
    const Header header{static_cast<uint16_t>(kind), 0, request};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(payload);
    return bytes;
}

Received receive(int socket) {
    static char buffer[kMaxFrame + 1];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
    iovec part{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t size = 0;
    do
        size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    Received received{Received::State::frame, {}, {}, {}};
    if (size < 0) {
        received.state = errno == EAGAIN ? Received::State::nothing : Received::State::closed;
        return received;
    }
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        const int* numbers = reinterpret_cast<const int*>(CMSG_DATA(c));
        received.descriptors.assign(numbers, numbers + count);
    }
    if (size == 0) {
        received.state = Received::State::closed;
    } else if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ||
               static_cast<size_t>(size) < sizeof(Header) ||
               static_cast<size_t>(size) > kMaxFrame) {
        received.state = Received::State::garbage;
    } else {
        memcpy(&received.header, buffer, sizeof(Header));
        received.payload.assign(buffer + sizeof(Header),
                                static_cast<size_t>(size) - sizeof(Header));
        if (received.header.reserved == 0)
            return received;
        received.state = Received::State::garbage;
    }
    for (const int fd : received.descriptors)
        close(fd);
    received.descriptors.clear();
    return received;
}

int send_frame(int socket, const std::string& bytes, int flags) {
    ssize_t size = 0;
    do
        size = send(socket, bytes.data(), bytes.size(), flags | MSG_NOSIGNAL);
    while (size < 0 && errno == EINTR);
    return size < 0 ? errno : 0;
}

} // namespace penstock::sandbox
