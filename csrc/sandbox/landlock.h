// Access of programs to files, to abstract sockets and to other processes.
#pragma once

#include "sandbox/root.h"

namespace penstock::sandbox {

// Returns the version of the kernel's Landlock, 0 without it (errno is set).
int landlock_abi();

// The first version that keeps signals and abstract sockets inside.
constexpr int kScopesAbi = 6;

// Restricts this process and its children: files are writable below the writable places only.
// Needs no_new_privs; errno is set on failure.
bool restrict_files(int abi, const Places& places);

} // namespace penstock::sandbox
