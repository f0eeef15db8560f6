#include "sandbox/init.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <map>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#include "sandbox/file_requests.h"
#include "sandbox/folders.h"
#include "sandbox/outbox.h"
#include "sandbox/processes.h"
#include "sandbox/program.h"
#include "sandbox/wire.h"

namespace penstock::sandbox {
namespace {

constexpr uint32_t kWantsChannel = 1;
constexpr size_t kMaxPrograms = 64;
constexpr int kMemoryPeriodMs = 250;

int64_t now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1'000'000;
}

struct Program {
    Supervisor supervisor;
    bool has_started = false;
    bool has_exited = false;
    // A SIGKILL that came before the supervisor had started the program.
    bool is_unwanted = false;
};

class Init {
  public:
    Init(Container container, int socket)
        : container_(std::move(container)), socket_(socket), outbox_(socket),
          files_(container_.spec, container_.places, !container_.layers.namespaces, outbox_) {}

    int run();

  private:
    // Each returns false if the request is malformed: the container ends.
    bool handle(Received& received);
    bool spawn(uint32_t request, Reader payload, std::vector<int>& descriptors);
    bool signal(uint32_t request, Reader payload);
    bool kill_others(uint32_t request, Reader payload);
    bool stats(uint32_t request, Reader payload);

    bool receive_all();
    void signal_program(Program& program, int number);
    void read_notices(uint32_t handle, Program& program);
    void end_program(uint32_t handle);
    void reap();
    void watch_memory();
    int open_signals();
    bool read_signals(int signals);
    void announce();
    bool step(int signals);
    void kill_orphans();
    void kill_all();
    std::vector<pid_t> supervisors() const;

    Container container_;
    const int socket_;
    const pid_t launcher_ = getppid();
    int64_t watched_at_ms_ = 0;
    Outbox outbox_;
    FileRequests files_;
    std::map<uint32_t, Program> programs_;
};

std::vector<pid_t> Init::supervisors() const {
    std::vector<pid_t> pids;
    for (const auto& [handle, program] : programs_)
        pids.push_back(program.supervisor.pid);
    return pids;
}

bool Init::spawn(uint32_t request, Reader payload, std::vector<int>& descriptors) {
    ProgramRequest program;
    const uint32_t flags = payload.u32();
    program.folder = payload.text();
    program.arguments = payload.texts();
    program.environment = payload.texts();
    program.descriptors = descriptors;
    const size_t expected = flags & kWantsChannel ? 3 : 2;
    if (!payload.finished() || program.arguments.empty() || descriptors.size() != expected ||
        programs_.contains(request))
        return false;
    if (programs_.size() >= kMaxPrograms) {
        outbox_.add_error(request, "spawn", "too many programs");
        return true;
    }
    // Processes that the limit counts beside those of programs: init and the supervisors, or all of
    // the user if the container has none of its own.
    const size_t overhead = container_.shares_user
                                ? count_own_threads(container_.places.proc_folder) + 1
                                : programs_.size() + 2;
    const Supervisor supervisor = start_program(program, [this, overhead] {
        return confine_program(container_.confinement, container_.spec, container_.places,
                               overhead);
    });
    if (supervisor.pid < 0)
        outbox_.add_error(request, "spawn", strerror(errno));
    else
        programs_[request] = Program{supervisor};
    return true;
}

bool Init::signal(uint32_t request, Reader payload) {
    const uint32_t handle = payload.u32(), number = payload.u32();
    if (!payload.finished() || number == 0 || number >= static_cast<uint32_t>(NSIG))
        return false;
    if (const auto program = programs_.find(handle); program != programs_.end())
        signal_program(program->second, static_cast<int>(number));
    outbox_.add(Kind::done, request, Writer());
    return true;
}

void Init::signal_program(Program& program, int number) {
    if (!program.has_started && number == SIGKILL)
        program.is_unwanted = true;
    signal_descendants(container_.places.proc_folder, program.supervisor.pid, {}, number);
}

bool Init::kill_others(uint32_t request, Reader payload) {
    const uint32_t count = payload.u32();
    std::vector<pid_t> kept;
    for (uint32_t i = 0; i < count && payload.ok(); ++i)
        if (const auto program = programs_.find(payload.u32()); program != programs_.end())
            kept.push_back(program->second.supervisor.pid);
    if (!payload.finished())
        return false;
    if (kept.empty()) {
        kill_all();
    } else {
        for (auto& [handle, program] : programs_)
            if (std::find(kept.begin(), kept.end(), program.supervisor.pid) == kept.end())
                signal_program(program, SIGKILL);
        kill_orphans();
    }
    outbox_.add(Kind::done, request, Writer());
    return true;
}

bool Init::stats(uint32_t request, Reader payload) {
    if (!payload.finished())
        return false;
    struct statfs status{};
    fstatfs(container_.places.work_folder, &status);
    const auto block = static_cast<uint64_t>(status.f_bsize);
    const auto running = descendants(container_.places.proc_folder, getpid(), {});
    outbox_.add(
        Kind::usage, request,
        Writer()
            .u32(static_cast<uint32_t>(running.size() - std::min(running.size(), programs_.size())))
            .u64((status.f_blocks - status.f_bfree) * block)
            .u64(status.f_blocks * block));
    return true;
}

bool Init::handle(Received& received) {
    const uint32_t request = received.header.request;
    const Reader payload(received.payload);
    switch (static_cast<Kind>(received.header.kind)) {
    case Kind::spawn: return spawn(request, payload, received.descriptors);
    case Kind::signal: return signal(request, payload);
    case Kind::kill_others: return kill_others(request, payload);
    case Kind::write_begin: return files_.write_begin(request, payload);
    case Kind::write_data: return files_.write_data(request, payload);
    case Kind::write_end: return files_.write_end(request, payload);
    case Kind::write_abort: return files_.write_abort(request, payload);
    case Kind::read: return files_.read(request, payload);
    case Kind::list: return files_.list(request, payload);
    case Kind::stats: return stats(request, payload);
    default: return false;
    }
}

bool Init::receive_all() {
    for (;;) {
        Received received = receive(socket_);
        if (received.state == Received::State::nothing)
            return true;
        if (received.state != Received::State::frame)
            return false;
        const bool handled = handle(received);
        for (const int fd : received.descriptors)
            close(fd);
        if (!handled)
            return false;
    }
}

void Init::read_notices(uint32_t handle, Program& program) {
    for (;;) {
        Notice notice;
        const ssize_t size = ::read(program.supervisor.notices, &notice, sizeof notice);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            return;
        if (size != sizeof notice)
            break;
        switch (notice.what) {
        case Notice::What::started:
            program.has_started = true;
            outbox_.add(Kind::spawned, handle, Writer().u32(static_cast<uint32_t>(notice.value)));
            if (program.is_unwanted)
                signal_program(program, SIGKILL);
            break;
        case Notice::What::failed:
            program.has_exited = true;
            outbox_.add_error(handle, "spawn", strerror(notice.value));
            break;
        case Notice::What::exited:
            program.has_exited = true;
            outbox_.add(Kind::exited, handle, Writer().u32(static_cast<uint32_t>(notice.value)));
            break;
        }
    }
    end_program(handle);
}

// Forgets a program whose supervisor has ended. A supervisor that was killed leaves orphans.
void Init::end_program(uint32_t handle) {
    const Program program = programs_[handle];
    close(program.supervisor.notices);
    programs_.erase(handle);
    if (program.has_exited)
        return;
    outbox_.add(Kind::exited, handle, Writer().u32(SIGKILL));
    kill_orphans();
}

// Orphans of a killed supervisor become children of init.
void Init::kill_orphans() {
    signal_descendants(container_.places.proc_folder, getpid(), supervisors(), SIGKILL);
}

void Init::kill_all() {
    const int proc = container_.places.proc_folder;
    if (!container_.layers.namespaces)
        return signal_descendants(proc, getpid(), {}, SIGKILL);
    kill(-1, SIGKILL);
    wait_for_end(proc, getpid(), {});
}

void Init::reap() {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
}

// Limits the memory of all processes together, if no cgroup does.
void Init::watch_memory() {
    const auto running = descendants(container_.places.proc_folder, getpid(), {});
    if (memory_of(container_.places.proc_folder, running) > container_.spec.memory_bytes)
        kill_all();
}

// Reads the pending signals. Returns false if the launcher has died.
bool Init::read_signals(int signals) {
    signalfd_siginfo info;
    while (::read(signals, &info, sizeof info) == sizeof info) {
    }
    reap();
    return container_.layers.namespaces || getppid() == launcher_;
}

int Init::open_signals() {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    // A program's signals to PID 1 are discarded as long as init does not block them.
    if (!container_.layers.namespaces)
        sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

void Init::announce() {
    fcntl(socket_, F_SETFL, O_NONBLOCK);
    fcntl(socket_, F_SETFD, FD_CLOEXEC);
    outbox_.add(Kind::ready, 0,
                to_json(container_.layers, container_.places.work, container_.places.temporary));
}

// Waits for events and handles them. Returns false when the container ends.
bool Init::step(int signals) {
    const bool wants_to_send = !outbox_.empty() || files_.has_transfers();
    std::vector<pollfd> polled{
        {socket_, static_cast<short>(POLLIN | (wants_to_send ? POLLOUT : 0)), 0},
        {signals, POLLIN, 0}};
    std::vector<uint32_t> handles;
    for (const auto& [handle, program] : programs_) {
        polled.push_back({program.supervisor.notices, POLLIN, 0});
        handles.push_back(handle);
    }
    const bool watches =
        container_.confinement.limits && !container_.layers.cgroup && !programs_.empty();
    const int count = poll(polled.data(), polled.size(), watches ? kMemoryPeriodMs : -1);
    if (count < 0)
        return errno == EINTR;
    if (watches && now_ms() - watched_at_ms_ >= kMemoryPeriodMs) {
        watch_memory();
        watched_at_ms_ = now_ms();
    }
    for (size_t i = 0; i < handles.size(); ++i)
        if (polled[i + 2].revents)
            read_notices(handles[i], programs_[handles[i]]);
    if ((polled[1].revents & POLLIN) && !read_signals(signals))
        return false;
    if (polled[0].revents & (POLLERR | POLLNVAL))
        return false;
    if ((polled[0].revents & (POLLIN | POLLHUP)) && !receive_all())
        return false;
    if (!outbox_.flush())
        return false;
    if (outbox_.empty())
        files_.continue_transfers();
    return true;
}

int Init::run() {
    const int signals = open_signals();
    announce();
    if (signals >= 0 && (container_.layers.namespaces || getppid() == launcher_) && outbox_.flush())
        while (step(signals)) {
        }
    kill_all();
    while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
    }
    remove_folder(container_.places.base);
    return 0;
}

} // namespace

int serve(Container container, int socket) {
    return Init(std::move(container), socket).run();
}

} // namespace penstock::sandbox
