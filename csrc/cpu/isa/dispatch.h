// Finds the ISAs that this CPU and operating system can run, from the features in features.h.
// Depends on the standard library only.
#pragma once

#include <optional>
#include <string_view>

#include "cpu/isa/isa.h"

namespace penstock::cpu {

// Returns the first requirement of `isa` that this machine lacks: a CPU feature in the spelling of
// /proc/cpuinfo ("avx512_vnni"), an architecture, or a build option; empty if the ISA can run. For
// `amx`, the first call requests the process's permission to use tiles: call this function before
// starting threads that use tiles.
std::string_view missing_feature(Isa isa);

// Returns the widest ISA that can run here; never an emulated ISA.
Isa best_isa();

// Returns the ISA with this name, or nullopt.
std::optional<Isa> find_isa(std::string_view name);

} // namespace penstock::cpu
