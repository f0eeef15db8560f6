// The ISA that a benchmark is told to measure.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cpu/isa/dispatch.h"

namespace penstock::lab {

// The ISA of that name, if it can run here; else says why not. Obtains the permission to use
// tiles, so call it before threads start.
inline std::optional<cpu::Isa> isa_argument(std::string_view name) {
    const auto isa = cpu::find_isa(name);
    if (!isa) {
        std::fprintf(stderr, "no such level: %s\n", std::string(name).c_str());
        return std::nullopt;
    }
    if (const auto missing = cpu::missing_feature(*isa); !missing.empty()) {
        std::fprintf(stderr, "level %s cannot run here: it needs %s\n", std::string(name).c_str(),
                     std::string(missing).c_str());
        return std::nullopt;
    }
    return isa;
}

} // namespace penstock::lab
