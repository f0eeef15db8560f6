#include "sandbox/program.h"

#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "sandbox/system.h"

namespace penstock::sandbox {
namespace {

// Descriptors of init from here on belong to the supervisor's own work.
constexpr int kScratch = 10;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts)
        result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
}

void reset_signals() {
    for (int number = 1; number < NSIG; ++number)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_program(const ProgramRequest& request, const Confine& confine, int errors) {
    const auto give_up = [errors] {
        const int reason = errno;
        [[maybe_unused]] const ssize_t size = write(errors, &reason, sizeof reason);
        _exit(127);
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    reset_signals();
    if (chdir(request.folder.c_str()) != 0 || !confine())
        give_up();
    execve(request.arguments[0].c_str(), pointers(request.arguments).data(),
           pointers(request.environment).data());
    give_up();
    __builtin_unreachable();
}

// Moves the program's descriptors to 0, 1, 2 (and 3) and `notices` to kScratch; closes all others.
bool arrange_descriptors(const ProgramRequest& request, int notices) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    std::vector<int> sources{null};
    sources.insert(sources.end(), request.descriptors.begin(), request.descriptors.end());
    sources.push_back(notices);
    // First out of the way of the targets, since a source may have a target's number.
    for (int& fd : sources)
        if ((fd = fcntl(fd, F_DUPFD_CLOEXEC, kScratch + 1)) < 0)
            return false;
    if (dup2(sources.back(), kScratch) < 0)
        return false;
    fcntl(kScratch, F_SETFD, FD_CLOEXEC);
    sources.pop_back();
    for (size_t i = 0; i < sources.size(); ++i)
        if (dup2(sources[i], static_cast<int>(i)) < 0)
            return false;
    for (int fd = static_cast<int>(sources.size()); fd < kScratch; ++fd)
        close(fd);
    sys::close_from(kScratch + 1);
    return true;
}

void tell(Notice::What what, int value) {
    const Notice notice{what, value};
    [[maybe_unused]] const ssize_t size = write(kScratch, &notice, sizeof notice);
}

[[noreturn]] void supervise(pid_t program) {
    for (int fd = 0; fd < kScratch; ++fd)
        close(fd);
    for (;;) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, 0);
        if (pid == program)
            tell(Notice::What::exited, status);
        if (pid < 0 && errno != EINTR)
            _exit(0);
    }
}

[[noreturn]] void run_supervisor(const ProgramRequest& request, const Confine& confine,
                                 int notices) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "supervisor");
    // A group of its own: signals to the group of init's starter do not end it.
    setpgid(0, 0);
    int errors[2];
    if (!arrange_descriptors(request, notices) || pipe2(errors, O_CLOEXEC) != 0) {
        tell(Notice::What::failed, errno);
        _exit(1);
    }
    const pid_t program = fork();
    if (program == 0) {
        close(errors[0]);
        run_program(request, confine, errors[1]);
    }
    if (program < 0) {
        tell(Notice::What::failed, errno);
        _exit(1);
    }
    close(errors[1]);
    int reason = 0;
    ssize_t size = 0;
    do
        size = read(errors[0], &reason, sizeof reason);
    while (size < 0 && errno == EINTR);
    close(errors[0]);
    if (size == sizeof reason) {
        tell(Notice::What::failed, reason);
        _exit(1);
    }
    tell(Notice::What::started, program);
    supervise(program);
}

} // namespace

Supervisor start_program(const ProgramRequest& request, const Confine& confine) {
    int notices[2];
    if (pipe2(notices, O_CLOEXEC | O_NONBLOCK) != 0)
        return {};
    const pid_t pid = fork();
    if (pid == 0) {
        fcntl(notices[1], F_SETFL, 0);
        run_supervisor(request, confine, notices[1]);
    }
    const int reason = errno;
    close(notices[1]);
    if (pid < 0) {
        close(notices[0]);
        errno = reason;
        return {};
    }
    return {pid, notices[0]};
}

} // namespace penstock::sandbox
