// The system calls that programs may make.
#pragma once

#include "sandbox/spec.h"

namespace penstock::sandbox {

// `none`: no sockets but pairs. `local`: also Unix sockets. `internet`: also IPv4 and IPv6.
enum class Sockets { none, local, internet };

bool has_seccomp();

// Allows this process and its children the listed system calls only; errno is set on failure.
// Needs no_new_privs. Other calls fail with EPERM, newer ones than the list with ENOSYS; a call of
// another architecture kills the process.
bool restrict_system_calls(Sockets sockets);

} // namespace penstock::sandbox
