#include "sandbox/launch.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <net/if.h>
#include <optional>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "sandbox/init.h"
#include "sandbox/processes.h"
#include "sandbox/wire.h"

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

namespace penstock::sandbox {
namespace {

bool write_text(const std::string& path, const std::string& text) {
    const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

bool read_text(int fd, std::string& text) {
    char buffer[4096];
    const ssize_t size = read(fd, buffer, sizeof buffer);
    if (size > 0)
        text.assign(buffer, static_cast<size_t>(size));
    return size > 0;
}

// Maps the container's user to `outer_id` if the launcher is root, else to the launcher's user.
Failure map_user(pid_t child, uint32_t outer_id, bool is_root) {
    const std::string folder = "/proc/" + std::to_string(child) + "/";
    const std::string inner = std::to_string(kInnerId) + " ";
    const uint32_t user = is_root ? outer_id : geteuid(), group = is_root ? outer_id : getegid();
    if (!is_root && !write_text(folder + "setgroups", "deny"))
        return failure("namespaces", "write setgroups");
    if (!write_text(folder + "uid_map", inner + std::to_string(user) + " 1"))
        return failure("namespaces", "write uid_map");
    if (!write_text(folder + "gid_map", inner + std::to_string(group) + " 1"))
        return failure("namespaces", "write gid_map");
    return {};
}

Failure start_loopback() {
    const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    if (!socket || ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0)
        return failure("network", "start the loopback interface");
    return {};
}

// The pipes between launcher and init during the set-up.
struct Channels {
    Descriptor go_read, go_write;
    Descriptor report_read, report_write;

    bool open() {
        int go[2], report[2];
        if (pipe2(go, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0)
            return false;
        go_read = Descriptor(go[0]);
        go_write = Descriptor(go[1]);
        report_read = Descriptor(report[0]);
        report_write = Descriptor(report[1]);
        return true;
    }
};

void keep_only(int socket, int& report) {
    // Descriptors: 0 to 2 of the launcher, 3 the socket, 4 the report; the rest is closed.
    const int moved = fcntl(report, F_DUPFD_CLOEXEC, 10);
    dup2(socket, 3);
    report = dup3(moved, 4, O_CLOEXEC);
    sys::close_from(5);
}

[[noreturn]] void report_and_exit(int report, const Failure& f) {
    const std::string text = f.layer + '\n' + f.reason;
    [[maybe_unused]] const ssize_t size = write(report, text.data(), text.size());
    _exit(1);
}

[[noreturn]] void run_init(Container container, int socket, int report, bool is_root) {
    keep_only(socket, report);
    Spec& spec = container.spec;
    if (container.layers.namespaces) {
        if (Failure f = enter_private_root(spec, is_root, container.places))
            report_and_exit(report, f);
        if (spec.network == Network::loopback)
            if (Failure f = start_loopback())
                report_and_exit(report, f);
        container.layers.network = spec.network;
        // Cleared by the change of the user, so it is set after it.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    } else {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    }
    prctl(PR_SET_NAME, "init");
    setsid();
    write_text("/proc/self/oom_score_adj", "1000");
    if (spec.mode != Mode::off) {
        if (Failure f = drop_privileges())
            report_and_exit(report, f);
        prctl(PR_SET_DUMPABLE, 0);
    }
    container.confinement = find_confinement(spec, container.layers);
    if (spec.mode == Mode::on)
        for (const Failure& missing : container.layers.missing)
            if (missing.layer != "cgroup")
                report_and_exit(report, missing);
    close(report);
    _exit(serve(std::move(container), 3));
}

// Reads init's report: an empty failure if it runs.
Failure read_report(int report) {
    std::string text;
    if (!read_text(report, text))
        return {};
    const size_t end = text.find('\n');
    if (end == text.npos)
        return {"namespaces", text};
    return {text.substr(0, end), text.substr(end + 1)};
}

Failure start_in_namespaces(const Spec& spec, int socket, pid_t& init) {
    Channels channels;
    if (!channels.open())
        return failure("namespaces", "pipe");
    const bool is_root = geteuid() == 0;
    long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                 CLONE_NEWCGROUP | SIGCHLD;
    if (spec.network != Network::full)
        flags |= CLONE_NEWNET;
    init = static_cast<pid_t>(syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr));
    if (init < 0)
        return failure("namespaces", "clone");
    if (init == 0) {
        channels.go_write = Descriptor();
        char go;
        if (read(channels.go_read.get(), &go, 1) != 1)
            _exit(1);
        Container container{spec, {}, {}, {}};
        container.layers.namespaces = true;
        run_init(std::move(container), socket, channels.report_write.get(), is_root);
    }
    channels.report_write = Descriptor();
    if (Failure f = map_user(init, spec.outer_id, is_root)) {
        kill(init, SIGKILL);
        waitpid(init, nullptr, 0);
        return f;
    }
    [[maybe_unused]] const ssize_t size = write(channels.go_write.get(), "g", 1);
    Failure f = read_report(channels.report_read.get());
    if (f)
        waitpid(init, nullptr, 0);
    return f;
}

int wait_for(pid_t init) {
    int status = 0;
    while (waitpid(init, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

} // namespace

int launch(const Spec& spec, int socket) {
    pid_t init = -1;
    Failure f = start_in_namespaces(spec, socket, init);
    if (f) {
        send_frame(socket, frame(Kind::failed, 0, Writer().text(f.layer).text(f.reason).bytes()),
                   0);
        return 1;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(socket);
    return wait_for(init);
}

} // namespace penstock::sandbox
