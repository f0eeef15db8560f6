// The private file system of a container.
#pragma once

#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

constexpr unsigned kInnerId = 1000;

// The folders that programs may write, and the descriptors through which init reaches them.
struct Places {
    std::string work;
    std::string temporary;
    std::string shared_memory;
    // Folders that programs may read; empty: the whole root.
    std::vector<std::string> readable;
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
