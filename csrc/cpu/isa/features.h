// What the ISAs need of this processor, and whether it and its operating system have it. One
// source an architecture. Standard library only.
#pragma once

#include <span>
#include <string_view>

#include "cpu/isa/isa.h"

namespace penstock::cpu {

struct Feature {
    Isa isa; // the lowest real ISA that needs it, as do those above; avx_vnni: it alone
    std::string_view name; // as Linux spells it in /proc/cpuinfo
    bool present;
};

// All of them; found once. Obtains the permission to use tiles: see `missing_feature`.
std::span<const Feature> features();

} // namespace penstock::cpu
