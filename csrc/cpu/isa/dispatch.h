// Which ISA this CPU and this kernel can run; features.h says what they have. Standard library
// only.
#pragma once

#include <optional>
#include <string_view>

#include "cpu/isa/isa.h"

namespace penstock::cpu {

// The first CPU feature that `isa` needs and this machine lacks ("avx512vnni"), as Linux spells
// it in /proc/cpuinfo, the architecture, or the build option; empty where the ISA can run. Asking
// for `amx` obtains, once for the whole process, the permission to use tiles: ask before threads
// that use them start.
std::string_view missing_feature(Isa isa);

// The widest ISA that can run here; never an emulated one.
Isa best_isa();

// The ISA of that name, or none.
std::optional<Isa> find_isa(std::string_view name);

} // namespace penstock::cpu
