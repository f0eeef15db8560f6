#include "sandbox/launch.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <grp.h>
#include <net/if.h>
#include <optional>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "sandbox/cgroup.h"
#include "sandbox/folders.h"
#include "sandbox/init.h"
#include "sandbox/processes.h"
#include "sandbox/text_file.h"
#include "sandbox/wire.h"

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

namespace penstock::sandbox {
namespace {

constexpr int kNiceness = 10;

bool receive_text(int fd, std::string& text) {
    char buffer[4096];
    const ssize_t size = read(fd, buffer, sizeof buffer);
    if (size > 0)
        text.assign(buffer, static_cast<size_t>(size));
    return size > 0;
}

// Maps the container's user to `owner`, or to the launcher's user if that is 0.
Failure map_user(pid_t child, uint32_t owner) {
    const std::string folder = "/proc/" + std::to_string(child) + "/";
    const std::string inner = std::to_string(kInnerId) + " ";
    const uint32_t user = owner ? owner : geteuid(), group = owner ? owner : getegid();
    if (owner == 0 && !write_text(folder + "setgroups", "deny"))
        return failure("namespaces", "write setgroups");
    if (!write_text(folder + "uid_map", inner + std::to_string(user) + " 1"))
        return failure("namespaces", "write uid_map");
    if (!write_text(folder + "gid_map", inner + std::to_string(group) + " 1"))
        return failure("namespaces", "write gid_map");
    return {};
}

// True if the launcher may give the container a user of its own: as root of a user namespace that
// has the container's id.
bool can_change_user(const Spec& spec) {
    if (geteuid() != 0 || spec.mode == Mode::off)
        return false;
    const std::string map = read_text("/proc/self/uid_map");
    unsigned long first = 0, outside = 0, count = 0;
    int size = 0;
    for (const char* line = map.c_str();
         sscanf(line, "%lu %lu %lu%n", &first, &outside, &count, &size) == 3; line += size)
        if (spec.outer_id >= first && spec.outer_id - first < count)
            return true;
    return false;
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

// The part of run_init() that depends on how the container is separated from the host.
Failure enter(Container& container, uint32_t owner) {
    const Spec& spec = container.spec;
    if (container.layers.namespaces) {
        if (Failure f = enter_private_root(spec, owner != 0, container.places))
            return f;
        if (spec.network == Network::loopback)
            if (Failure f = start_loopback())
                return f;
        // Cleared by the change of the user, so it is set after it.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return {};
    }
    if (owner != 0 && (setgroups(0, nullptr) != 0 || setresgid(owner, owner, owner) != 0 ||
                       setresuid(owner, owner, owner) != 0))
        return failure("limits", "change the user");
    umask(022);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    return open_folders(container.places);
}

[[noreturn]] void run_init(Container container, int socket, int report, uint32_t owner) {
    keep_only(socket, report);
    const Spec& spec = container.spec;
    if (Failure f = enter(container, owner))
        report_and_exit(report, f);
    prctl(PR_SET_NAME, "init");
    setpgid(0, 0);
    write_text("/proc/self/oom_score_adj", "1000");
    if (spec.mode != Mode::off) {
        if (Failure f = drop_privileges())
            report_and_exit(report, f);
        prctl(PR_SET_DUMPABLE, 0);
    }
    container.confinement = find_confinement(spec, container.layers);
    if (spec.mode == Mode::on)
        for (const Failure& missing : container.layers.missing)
            if (missing.layer != "cgroup" && missing.layer != "landlock_scopes")
                report_and_exit(report, missing);
    close(report);
    _exit(serve(std::move(container), 3));
}

// Reads init's report: an empty failure if it runs.
Failure read_report(int report) {
    std::string text;
    if (!receive_text(report, text))
        return {};
    const size_t end = text.find('\n');
    if (end == text.npos)
        return {"namespaces", text};
    return {text.substr(0, end), text.substr(end + 1)};
}

int clone_flags(const Container& container) {
    if (!container.layers.namespaces)
        return SIGCHLD;
    const int flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                      CLONE_NEWCGROUP | SIGCHLD;
    return container.spec.network == Network::full ? flags : flags | CLONE_NEWNET;
}

// Starts init and waits until it has set itself up. `owner`: the container's user, or 0 for the
// launcher's.
Failure start(const Container& container, uint32_t owner, const std::string& cgroup, int socket,
              pid_t& init) {
    Channels channels;
    if (!channels.open())
        return failure("namespaces", "pipe");
    init = static_cast<pid_t>(
        syscall(SYS_clone, clone_flags(container), nullptr, nullptr, nullptr, nullptr));
    if (init < 0)
        return failure("namespaces", "clone");
    if (init == 0) {
        channels.go_write = Descriptor();
        char go;
        if (read(channels.go_read.get(), &go, 1) != 1)
            _exit(1);
        run_init(container, socket, channels.report_write.get(), owner);
    }
    channels.report_write = Descriptor();
    Failure f;
    if (container.layers.namespaces)
        f = map_user(init, owner);
    if (!f && container.layers.cgroup && !enter_cgroup(cgroup, init))
        f = failure("cgroup", "enter " + cgroup);
    if (!f) {
        [[maybe_unused]] const ssize_t size = write(channels.go_write.get(), "g", 1);
        f = read_report(channels.report_read.get());
    }
    if (f) {
        kill(init, SIGKILL);
        waitpid(init, nullptr, 0);
    }
    return f;
}

int wait_for(pid_t init) {
    int status = 0;
    while (waitpid(init, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Ends the processes that an init without a PID namespace leaves if it is killed.
void end_orphans() {
    const Descriptor proc(open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    signal_descendants(proc.get(), getpid(), {}, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
    }
}

// Gives the container's programs a small share of the processors, so that programs that compute
// do not delay the server's streams. The kernel may schedule each session (setsid) as one group:
// then only the group's value counts, and it holds for all programs of the container because none
// of them starts in a session of its own. A failure only costs speed.
void yield_to_the_server() {
    setpriority(PRIO_PROCESS, 0, kNiceness);
    write_text("/proc/self/autogroup", std::to_string(kNiceness));
}

} // namespace

int launch(const Spec& spec, int socket) {
    // Signals of the server's terminal are the server's.
    setsid();
    yield_to_the_server();
    Container container{spec, {}, {}, {}, false};
    Layers& layers = container.layers;
    const uint32_t owner = can_change_user(spec) ? spec.outer_id : 0;
    std::string cgroup;
    Failure f;
    if (!spec.host_workdir.empty())
        f = prepare_host_folder(spec.host_workdir, owner);
    if (!f && spec.mode != Mode::off) {
        if (Failure missing = make_cgroup(spec, cgroup))
            layers.missing.push_back(missing);
        layers.cgroup = !cgroup.empty();
        layers.namespaces = true;
    }
    pid_t init = -1;
    if (!f && layers.namespaces) {
        // Before the start, so that a server's death in between is not missed.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        f = start(container, owner, cgroup, socket, init);
    }
    const bool falls_back = f.layer == "namespaces" || f.layer == "network";
    if (spec.mode == Mode::off ? !f : spec.mode == Mode::automatic && falls_back) {
        if (f)
            layers.missing.push_back(f);
        layers.namespaces = false;
        container.shares_user = owner == 0;
        prctl(PR_SET_PDEATHSIG, 0);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        f = make_folders(spec, owner, container.places);
        if (!f)
            f = start(container, owner, cgroup, socket, init);
    }
    int status = 1;
    if (f) {
        send_frame(socket, frame(Kind::failed, 0, Writer().text(f.layer).text(f.reason).bytes()),
                   0);
    } else {
        close(socket);
        status = wait_for(init);
    }
    if (!layers.namespaces)
        end_orphans();
    remove_folder(container.places.base);
    if (!cgroup.empty())
        remove_cgroup(cgroup);
    return status;
}

} // namespace penstock::sandbox
