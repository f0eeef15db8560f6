// Which level this CPU and this kernel can run; features.h says what they have. Standard library
// only.
#pragma once

#include <optional>
#include <string_view>

#include "cpu/level.h"

namespace penstock::cpu {

// The first CPU feature that `level` needs and this machine lacks ("avx512vnni"), as Linux spells
// it in /proc/cpuinfo, the architecture, or the build option; empty where the level can run. Asking
// for `amx` obtains, once for the whole process, the permission to use tiles: ask before threads
// that use them start.
std::string_view missing_feature(Level level);

// The widest level that can run here; never an emulated one.
Level best_level();

// The level of that name, or none.
std::optional<Level> level_named(std::string_view name);

} // namespace penstock::cpu
