// The frames that wait until the socket to the server takes them.
#pragma once

#include <deque>
#include <string>

#include "sandbox/wire.h"

namespace penstock::sandbox {

class Outbox {
  public:
    explicit Outbox(int socket) : socket_(socket) {}

    void add(Kind kind, uint32_t request, std::string_view payload) {
        frames_.push_back(frame(kind, request, payload));
    }
    void add(Kind kind, uint32_t request, const Writer& payload) {
        add(kind, request, payload.bytes());
    }
    void add_error(uint32_t request, const std::string& code, const std::string& message) {
        add(Kind::file_error, request, Writer().text(code).text(message));
    }
    bool empty() const { return frames_.empty(); }

    // Sends as many frames as the socket takes. Returns false if the server is gone.
    bool flush();

  private:
    const int socket_;
    std::deque<std::string> frames_;
};

} // namespace penstock::sandbox
