// A cgroup (version 2) per container, if the server may make one.
#pragma once

#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

// Makes the container's cgroup with its limits; `path` is its folder. Fails with the layer
// "cgroup" if no hierarchy with the memory and pids controllers is writable.
Failure make_cgroup(const Spec& spec, std::string& path);

// Moves a process into the cgroup.
bool enter_cgroup(const std::string& path, pid_t pid);

void remove_cgroup(const std::string& path);

} // namespace penstock::sandbox
