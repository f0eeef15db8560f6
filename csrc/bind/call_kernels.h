// Which kernels serve a checked call.
#pragma once

#include <string>

#include "bind/call.h"

namespace penstock::bind {

// Those of the family's own level, and by rows those of other levels that give its bits for this
// call. Raises KeyError where a level has no kernel of that name.
KernelChoice kernels_of(const KernelSet& kernels, const CheckedCall& call, const std::string& name);

} // namespace penstock::bind
