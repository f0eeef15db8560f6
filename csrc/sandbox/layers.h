// The layers of confinement that hold, as the server is told.
#pragma once

#include <string>
#include <vector>

#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

struct Layers {
    bool namespaces = false;
    bool landlock = false;
    bool seccomp = false;
    bool limits = false;
    bool cgroup = false;
    Network network = Network::full;
    std::vector<Failure> missing;
};

// The JSON text of a ready frame, and of `--probe`.
std::string to_json(const Layers& layers, const std::string& work, const std::string& temporary);

} // namespace penstock::sandbox
