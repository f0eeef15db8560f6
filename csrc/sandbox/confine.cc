#include "sandbox/confine.h"

#include <algorithm>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "sandbox/landlock.h"

namespace penstock::sandbox {
namespace {

struct CapabilityHeader {
    uint32_t version;
    int pid;
};
struct CapabilityData {
    uint32_t effective, permitted, inheritable;
};
constexpr uint32_t kCapabilityVersion3 = 0x20080522;

constexpr rlim_t kOpenFiles = 1024;
constexpr rlim_t kFileBytes = 256ull << 20;

bool limit(__rlimit_resource which, rlim_t value) {
    rlimit current;
    if (getrlimit(which, &current) != 0)
        return false;
    value = std::min(value, current.rlim_max);
    const rlimit wanted{value, value};
    return setrlimit(which, &wanted) == 0;
}

bool set_limits(const Spec& spec, size_t overhead) {
    return limit(RLIMIT_AS, spec.memory_bytes) && limit(RLIMIT_CPU, spec.cpu_seconds) &&
           limit(RLIMIT_NPROC, spec.max_processes + overhead) && limit(RLIMIT_NOFILE, kOpenFiles) &&
           limit(RLIMIT_FSIZE, kFileBytes) && limit(RLIMIT_CORE, 0);
}

} // namespace

Failure drop_privileges() {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return failure("namespaces", "no_new_privs");
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; ++capability)
        prctl(PR_CAPBSET_DROP, capability);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    const CapabilityHeader header{kCapabilityVersion3, 0};
    const CapabilityData none[2]{};
    if (syscall(SYS_capset, &header, none) != 0)
        return failure("namespaces", "capset");
    return {};
}

Confinement find_confinement(const Spec& spec, Layers& layers) {
    Confinement found;
    if (spec.mode == Mode::off)
        return found;
    found.limits = layers.limits = true;
    found.landlock_abi = landlock_abi();
    layers.landlock = found.landlock_abi > 0;
    if (!layers.landlock)
        layers.missing.push_back(failure("landlock", "create a ruleset"));
    else if (found.landlock_abi < kScopesAbi)
        layers.missing.push_back({"landlock_scopes", "this kernel's Landlock is older than ABI 6"});
    found.seccomp = layers.seccomp = has_seccomp();
    if (!layers.seccomp)
        layers.missing.push_back(failure("seccomp", "install a filter"));
    if (layers.namespaces) {
        layers.network = spec.network;
        found.sockets = spec.network == Network::none ? Sockets::local : Sockets::internet;
        return found;
    }
    // Without a network namespace, sockets are refused; Unix sockets too, since those of the
    // host's services are in reach.
    const bool closed = spec.network != Network::full && found.seccomp;
    layers.network = closed ? Network::none : Network::full;
    found.sockets = closed ? Sockets::none : Sockets::internet;
    if (layers.network != spec.network)
        layers.missing.push_back({"network", "needs a network namespace"});
    return found;
}

bool confine_program(const Confinement& confinement, const Spec& spec, const Places& places,
                     size_t overhead) {
    return (!confinement.limits || set_limits(spec, overhead)) &&
           (confinement.landlock_abi == 0 || restrict_files(confinement.landlock_abi, places)) &&
           (!confinement.seccomp || restrict_system_calls(confinement.sockets));
}

} // namespace penstock::sandbox
