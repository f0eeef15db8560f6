// Parses the ISA argument of a benchmark.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cpu/isa/dispatch.h"

namespace penstock::lab {

// Returns the ISA of that name, or prints why it cannot run here and returns nullopt. Requests the
// permission to use AMX tiles, so call it before threads start.
inline std::optional<cpu::Isa> isa_argument(std::string_view name) {
    const auto isa = cpu::find_isa(name);
    if (!isa) {
        std::fprintf(stderr, "unknown ISA: %s\n", std::string(name).c_str());
        return std::nullopt;
    }
    if (const auto missing = cpu::missing_feature(*isa); !missing.empty()) {
        std::fprintf(stderr, "ISA %s cannot run here: it needs %s\n", std::string(name).c_str(),
                     std::string(missing).c_str());
        return std::nullopt;
    }
    return isa;
}

} // namespace penstock::lab
