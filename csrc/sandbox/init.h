// The first process of a container: it serves the server's requests until the socket closes.
#pragma once

#include "sandbox/confine.h"
#include "sandbox/layers.h"
#include "sandbox/root.h"
#include "sandbox/spec.h"

namespace penstock::sandbox {

struct Container {
    Spec spec;
    Places places;
    Layers layers;
    Confinement confinement;
    // The programs have the server's user, on the host.
    bool shares_user = false;
};

// Serves until the server closes the socket or sends garbage; ends all processes. Returns the exit
// status.
int serve(Container container, int socket);

} // namespace penstock::sandbox
