// The folders of a container without namespaces: real ones, removed at its end.
#pragma once

#include "sandbox/root.h"
#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

// Makes a private folder on the host with a working directory, a folder for temporary files and
// one for skills. `owner`: user and group of them, or 0 to keep this process's.
Failure make_folders(const Spec& spec, uint32_t owner, Places& places);

// Opens the folders for init.
Failure open_folders(Places& places);

// Gives a folder of the host that becomes the working directory, and all in it, to `owner`; makes
// it if it is missing. Follows no link.
Failure prepare_host_folder(const std::string& path, uint32_t owner);

// Removes a folder with all in it. Follows no link.
void remove_folder(const std::string& path);

} // namespace penstock::sandbox
