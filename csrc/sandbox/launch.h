// Starts a container: namespaces, the user mapping, and the container's init.
#pragma once

#include "sandbox/spec.h"

namespace penstock::sandbox {

// Runs the container until its init ends. `socket`: the connection to the server, given to init.
// Returns the exit status.
int launch(const Spec& spec, int socket);

} // namespace penstock::sandbox
