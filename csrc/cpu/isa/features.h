// CPU features that the ISAs need, and whether this processor and its operating system have them.
// One source file per architecture. Depends on the standard library only.
#pragma once

#include <span>
#include <string_view>

#include "cpu/isa/isa.h"

namespace penstock::cpu {

struct Feature {
    // the lowest real ISA that needs it; higher ones need it too, except that avx_vnni is alone
    Isa isa;
    std::string_view name; // as Linux spells it in /proc/cpuinfo
    bool present;
};

// All features; detected once. Requests the permission to use tiles: see `missing_feature`.
std::span<const Feature> features();

} // namespace penstock::cpu
