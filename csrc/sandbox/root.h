// The private file system of a container.
#pragma once

#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

constexpr unsigned kInnerId = 1000;

// The folders of a container, and the descriptors through which init reaches them.
struct Places {
    std::string work;
    std::string temporary;
    // The paths below which programs may read, and those below which they may also write.
    std::vector<std::string> readable;
    std::vector<std::string> writable;
    // The folder to remove at the end, if it is on the host.
    std::string base;
    int work_folder = -1;
    // The writable side of the folder that programs see read-only as skills/.
    int skills_folder = -1;
    int proc_folder = -1;
};

// Replaces the root of this mount namespace by a tmpfs with read-only binds of the toolchain
// folders, and becomes the container's user. The caller has all capabilities of a new user
// namespace with a mount, a PID and a UTS namespace in it.
Failure enter_private_root(const Spec& spec, bool has_groups, Places& places);

} // namespace penstock::sandbox
