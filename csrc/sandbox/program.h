// Starts the programs of a container, each below a supervisor of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sandbox/root.h"
#include "sandbox/spec.h"

namespace penstock::sandbox {

struct ProgramRequest {
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    std::string folder;
    // The program's stdout and stderr, and its channel (descriptor 3) if there is one.
    std::vector<int> descriptors;
};

// A record that a supervisor writes to its init.
struct Notice {
    enum class What : int32_t { started, failed, exited } what;
    // The program's PID; an errno; the wait status.
    int32_t value;
};

// The child subreaper above one program: it keeps all descendants of the program in one tree, also
// those whose parents have exited, and ends when none is left.
struct Supervisor {
    pid_t pid = -1;
    // Readable for Notice records; the end of file means that the supervisor has ended.
    int notices = -1;
};

// Confines the calling process before it becomes a program. Returns false if a layer that should
// hold does not; errno says why.
using Confine = std::function<bool()>;

// Returns pid -1 with errno set if the supervisor cannot be started.
Supervisor start_program(const ProgramRequest& request, const Confine& confine);

} // namespace penstock::sandbox
