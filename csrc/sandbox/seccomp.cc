#include "sandbox/seccomp.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <vector>

namespace penstock::sandbox {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "penstock-sandbox supports x86_64 and aarch64"
#endif

constexpr uint32_t kFirstX32Call = 0x40000000;
// Calls from here on are newer than this list: ENOSYS makes programs fall back to older ones.
constexpr uint32_t kFirstUnknownCall = 457;
constexpr uint32_t kClone3 = 435;

constexpr uint32_t kAllowed[] = {
#include "sandbox/system_calls.inc"
};

constexpr uint32_t kNamespaceFlags = 0x7e020000;
constexpr uint32_t kSetPipeSize = 1031;

class Program {
  public:
    void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
    void load_argument(int index) { load(offsetof(seccomp_data, args) + 8 * index); }
    void load_argument_high(int index) { load(offsetof(seccomp_data, args) + 8 * index + 4); }
    void mask(uint32_t bits) { add(BPF_ALU | BPF_AND | BPF_K, bits); }
    void finish(uint32_t action) { add(BPF_RET | BPF_K, action); }
    void deny(int error) { finish(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)); }
    void allow() { finish(SECCOMP_RET_ALLOW); }

    // Runs the next `count` instructions only if the loaded value compares so.
    void if_equal(uint32_t value, uint8_t count) { jump(BPF_JEQ, value, 0, count); }
    void if_different(uint32_t value, uint8_t count) { jump(BPF_JEQ, value, count, 0); }
    void if_at_least(uint32_t value, uint8_t count) { jump(BPF_JGE, value, 0, count); }
    void if_at_most(uint32_t value, uint8_t count) { jump(BPF_JGT, value, count, 0); }
    void if_any_bit(uint32_t bits, uint8_t count) { jump(BPF_JSET, bits, 0, count); }

    // Adds `body`, run only for one system call. The body must end with an action.
    template <typename Body>
    void on_call(uint32_t number, Body body) {
        const size_t start = code_.size();
        if_equal(number, 0);
        body(*this);
        code_[start].jf = static_cast<uint8_t>(code_.size() - start - 1);
    }

    bool install() {
        const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    }

  private:
    void add(uint16_t operation, uint32_t value) { code_.push_back({operation, 0, 0, value}); }
    void jump(uint16_t comparison, uint32_t value, uint8_t if_true, uint8_t if_false) {
        code_.push_back(
            {static_cast<uint16_t>(BPF_JMP | comparison | BPF_K), if_true, if_false, value});
    }

    std::vector<sock_filter> code_;
};

void check_sockets(Program& program, Sockets sockets) {
    program.on_call(SYS_socket, [sockets](Program& p) {
        // The type without SOCK_NONBLOCK and SOCK_CLOEXEC. Raw and packet sockets are refused.
        p.load_argument(1);
        p.mask(0xf);
        p.if_equal(SOCK_RAW, 1);
        p.deny(EPERM);
        p.load_argument(0);
        if (sockets != Sockets::none) {
            p.if_equal(AF_UNIX, 1);
            p.allow();
        }
        if (sockets == Sockets::internet) {
            p.if_equal(AF_INET, 1);
            p.allow();
            p.if_equal(AF_INET6, 1);
            p.allow();
            p.deny(EAFNOSUPPORT);
        } else {
            p.deny(EPERM);
        }
    });
    program.on_call(SYS_socketpair, [](Program& p) {
        p.load_argument(0);
        p.if_equal(AF_UNIX, 1);
        p.allow();
        p.deny(EPERM);
    });
}

// Calls that are allowed with some arguments only.
void check_arguments(Program& program) {
    program.on_call(SYS_clone, [](Program& p) {
        p.load_argument(0);
        p.if_any_bit(kNamespaceFlags, 1);
        p.deny(EPERM);
        p.allow();
    });
    // The flags of clone3 are in memory, out of reach of a filter: the C library falls back.
    program.on_call(kClone3, [](Program& p) { p.deny(ENOSYS); });
    program.on_call(SYS_prctl, [](Program& p) {
        p.load_argument(0);
        p.if_equal(PR_SET_SECCOMP, 1);
        p.deny(EPERM);
        p.allow();
    });
    program.on_call(SYS_ioctl, [](Program& p) {
        p.load_argument(1);
        for (const uint32_t refused : {TIOCSTI, TIOCLINUX, TIOCCONS}) {
            p.if_equal(refused, 1);
            p.deny(EPERM);
        }
        p.allow();
    });
    // The memory of pipes counts against the server's user.
    program.on_call(SYS_fcntl, [](Program& p) {
        p.load_argument(1);
        p.if_equal(kSetPipeSize, 1);
        p.deny(EPERM);
        p.allow();
    });
    // A program may limit itself, but not the init and its supervisor, which have the same user.
    program.on_call(SYS_prlimit64, [](Program& p) {
        p.load_argument(0);
        p.if_equal(0, 1);
        p.allow();
        p.deny(EPERM);
    });
    program.on_call(SYS_personality, [](Program& p) {
        p.load_argument(0);
        for (const uint32_t allowed : {0u, ~0u}) {
            p.if_equal(allowed, 1);
            p.allow();
        }
        p.deny(EPERM);
    });
}

void allow_listed(Program& program) {
    std::vector<uint32_t> calls(std::begin(kAllowed), std::end(kAllowed));
    std::sort(calls.begin(), calls.end());
    for (size_t first = 0; first < calls.size();) {
        size_t last = first;
        while (last + 1 < calls.size() && calls[last + 1] <= calls[last] + 1)
            ++last;
        program.if_at_least(calls[first], 2);
        program.if_at_most(calls[last], 1);
        program.allow();
        first = last + 1;
    }
}

} // namespace

bool has_seccomp() {
    // EFAULT: the kernel knows filters and reads the program.
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr) != 0 && errno == EFAULT;
}

bool restrict_system_calls(Sockets sockets) {
    Program program;
    program.load(offsetof(seccomp_data, arch));
    program.if_different(kArchitecture, 1);
    program.finish(SECCOMP_RET_KILL_PROCESS);
    program.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    program.if_at_least(kFirstX32Call, 1);
    program.deny(ENOSYS);
#endif
    check_sockets(program, sockets);
    check_arguments(program);
    allow_listed(program);
    program.if_at_least(kFirstUnknownCall, 1);
    program.deny(ENOSYS);
    program.deny(EPERM);
    return program.install();
}

} // namespace penstock::sandbox
