// The level that a benchmark is told to measure.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cpu/dispatch.h"

namespace penstock::lab {

// The level of that name, if it can run here; else says why not. Obtains the permission to use
// tiles, so call it before threads start.
inline std::optional<cpu::Level> level_argument(std::string_view name) {
    const auto level = cpu::level_named(name);
    if (!level) {
        std::fprintf(stderr, "no such level: %s\n", std::string(name).c_str());
        return std::nullopt;
    }
    if (const auto missing = cpu::missing_feature(*level); !missing.empty()) {
        std::fprintf(stderr, "level %s cannot run here: it needs %s\n", std::string(name).c_str(),
                     std::string(missing).c_str());
        return std::nullopt;
    }
    return level;
}

} // namespace penstock::lab
