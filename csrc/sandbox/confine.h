// The layers that each program gets before it starts: limits, Landlock and seccomp.
#pragma once

#include "sandbox/layers.h"
#include "sandbox/root.h"
#include "sandbox/seccomp.h"
#include "sandbox/spec.h"

namespace penstock::sandbox {

// The layers that apply to programs.
struct Confinement {
    bool limits = false;
    int landlock_abi = 0;
    bool seccomp = false;
    Sockets sockets = Sockets::internet;
};

// Drops all capabilities and forbids new privileges for this process and its children.
Failure drop_privileges();

// Finds out which layers this kernel has and enters them in `layers`, whose `namespaces` says how
// the container started.
Confinement find_confinement(const Spec& spec, Layers& layers);

// Confines the calling process. `overhead`: the processes of the container that are not
// programs'. Returns false with errno set on failure.
bool confine_program(const Confinement& confinement, const Spec& spec, const Places& places,
                     size_t overhead);

} // namespace penstock::sandbox
