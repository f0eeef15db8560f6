// What the levels need of this processor, and whether it and its operating system have it. One
// source an architecture. Standard library only.
#pragma once

#include <span>
#include <string_view>

#include "cpu/level.h"

namespace penstock::cpu {

struct Feature {
    Level level; // the lowest real level that needs it, as do those above; avx_vnni: it alone
    std::string_view name; // as Linux spells it in /proc/cpuinfo
    bool present;
};

// All of them; found once. Obtains the permission to use tiles: see `missing_feature`.
std::span<const Feature> features();

} // namespace penstock::cpu
