// The parts of the host's file system that programs may read.
#pragma once

#include <string>
#include <vector>

#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

// A part of the host's file system, detached from it.
struct Bind {
    std::string target;
    Descriptor tree;
    bool folder;
};

struct Link {
    std::string path, target;
};

// The parts of the host that a container sees, all read-only.
struct HostTrees {
    std::vector<Bind> binds;
    std::vector<Link> links;
    std::string resolver;
};

// Detaches copies of the system folders, of the needed parts of /etc, of a few devices, and of the
// spec's folders, as read-only mounts.
Failure collect_host_trees(const Spec& spec, HostTrees& trees);

} // namespace penstock::sandbox
