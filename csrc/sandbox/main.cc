// penstock-sandbox: runs one container for the server that started it.
//
//   penstock-sandbox --control FD       FD: a SOCK_SEQPACKET socket on which the spec arrives
//   penstock-sandbox --probe [NETWORK]  prints the layers that hold, as JSON

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/launch.h"
#include "sandbox/wire.h"

namespace penstock::sandbox {
namespace {

// The user of a probe if the launcher is root: below those of containers.
constexpr uint32_t kProbeId = 0x4fffffff;

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

// Starts a container, prints what its init reports, and ends it.
int probe(const char* network) {
    Spec spec;
    spec.network = strcmp(network, "none") == 0   ? Network::none
                   : strcmp(network, "full") == 0 ? Network::full
                                                  : Network::loopback;
    spec.memory_bytes = 64 << 20;
    spec.cpu_seconds = 10;
    spec.max_processes = 4;
    spec.outer_id = kProbeId;
    spec.cgroup = "penstock-probe-" + std::to_string(getpid());
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return 1;
    const pid_t launcher = fork();
    if (launcher == 0) {
        close(ends[0]);
        _exit(launch(spec, ends[1]));
    }
    close(ends[1]);
    const Received received = receive(ends[0]);
    const bool is_ready = received.state == Received::State::frame &&
                          received.header.kind == static_cast<uint16_t>(Kind::ready);
    if (is_ready) {
        puts(received.payload.c_str());
    } else if (received.state == Received::State::frame) {
        Reader reader(received.payload);
        const std::string layer(reader.text()), reason(reader.text());
        fprintf(stderr, "%s: %s\n", layer.c_str(), reason.c_str());
    }
    close(ends[0]);
    waitpid(launcher, nullptr, 0);
    return is_ready ? 0 : 1;
}

} // namespace
} // namespace penstock::sandbox

int main(int count, char** arguments) {
    if (count == 3 && strcmp(arguments[1], "--control") == 0) {
        const int socket = atoi(arguments[2]);
        // Programs can read the command line of their init: it must not show a path of the host.
        for (char** argument = arguments; *argument; ++argument)
            memset(*argument, 0, strlen(*argument));
        return penstock::sandbox::run(socket);
    }
    if ((count == 2 || count == 3) && strcmp(arguments[1], "--probe") == 0)
        return penstock::sandbox::probe(count == 3 ? arguments[2] : "loopback");
    fputs("usage: penstock-sandbox --control FD | --probe [none|loopback|full]\n", stderr);
    return 2;
}
