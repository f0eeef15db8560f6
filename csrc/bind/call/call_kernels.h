// Which kernels serve a checked call.
#pragma once

#include <string>

#include "bind/call/call.h"

namespace penstock::bind {

// Those of the family's own ISA, and by rows those of other ISAs that give its bits for this
// call. Raises KeyError where an ISA has no kernel of that name.
KernelChoice kernels_of(const KernelSet& kernels, const CheckedCall& call, const std::string& name);

} // namespace penstock::bind
