// CPU features that the ISAs need, and whether this processor and its operating system have them.
// One source file per architecture. Depends on the standard library only.
#pragma once

#include <span>
#include <string_view>

#include "cpu/isa/isa.h"

namespace penstock::cpu {

struct Feature {
    // the lowest ISA that needs the feature; all higher ISAs need it too, unless it is a feature of
    // avx_vnni
    Isa isa;
    std::string_view name; // spelled as in /proc/cpuinfo
    bool present;
};

// Returns all features, which are detected once. Requests the permission to use tiles: see
// `missing_feature`.
std::span<const Feature> features();

} // namespace penstock::cpu
