// Chooses the kernels of a checked call.
#pragma once

#include <string>

#include "bind/call/call.h"

namespace penstock::bind {

// Returns the kernel of the family's own ISA and, per range of rows, kernels of other ISAs that
// give the same bits for this call. Raises KeyError if an ISA has no kernel with this name.
KernelChoice kernels_of(const KernelSet& kernels, const CheckedCall& call, const std::string& name);

} // namespace penstock::bind
