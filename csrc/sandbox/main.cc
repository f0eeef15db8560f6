// penstock-sandbox: runs one container for the server that started it.
//
//   penstock-sandbox --control FD     FD: a SOCK_SEQPACKET socket on which the spec arrives

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sandbox/launch.h"
#include "sandbox/wire.h"

namespace penstock::sandbox {
namespace {

int run(int socket) {
    const Received received = receive(socket);
    if (received.state != Received::State::frame ||
        received.header.kind != static_cast<uint16_t>(Kind::spec))
        return 2;
    const std::optional<Spec> spec = decode_spec(received.payload);
    if (!spec) {
        send_frame(socket,
                   frame(Kind::failed, 0, Writer().text("spec").text("malformed spec").bytes()), 0);
        return 2;
    }
    return launch(*spec, socket);
}

} // namespace
} // namespace penstock::sandbox

int main(int count, char** arguments) {
    if (count == 3 && strcmp(arguments[1], "--control") == 0)
        return penstock::sandbox::run(atoi(arguments[2]));
    fputs("usage: penstock-sandbox --control FD\n", stderr);
    return 2;
}
