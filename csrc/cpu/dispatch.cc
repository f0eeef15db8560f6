#include "cpu/dispatch.h"

#include "cpu/features.h"

namespace penstock::cpu {
namespace {

// What a level is compiled with: emulated ones are arrays of floats compiled for avx2.
Level compiled_for(Level level) {
    switch (level) {
    case Level::emulated_avx512:
    case Level::emulated_avx512_bf16:
    case Level::emulated_amx: return Level::avx2;
    case Level::scalar:
    case Level::neon:
    case Level::avx2:
    case Level::avx_vnni:
    case Level::avx512:
    case Level::avx512_bf16:
    case Level::amx: return level;
    }
    return level;
}

constexpr std::string_view x86 = "an x86-64 processor", arm = "an ARMv8 processor";
#if defined(__x86_64__)
constexpr std::string_view here = x86;
#elif defined(__aarch64__)
constexpr std::string_view here = arm;
#else
constexpr std::string_view here = "";
#endif

bool needs(Level level, const Feature& feature) {
    return feature.level == Level::avx_vnni ? level == feature.level : level >= feature.level;
}

} // namespace

std::string_view missing_feature(Level level) {
    const std::string_view architecture = level == Level::neon ? arm : x86;
    if (level != Level::scalar && architecture != here) {
        return architecture;
    }
    if (!is_built(level)) {
        return level == compiled_for(level) ? "a build with PENSTOCK_LEVELS=all"
                                            : "a build with PENSTOCK_EMULATED=ON";
    }
    for (const Feature& feature : features()) {
        if (needs(compiled_for(level), feature) && !feature.present) {
            return feature.name;
        }
    }
    return {};
}

Level best_level() {
    for (const Level level : {Level::amx, Level::avx512_bf16, Level::avx512, Level::avx_vnni,
                              Level::avx2, Level::neon}) {
        if (missing_feature(level).empty()) {
            return level;
        }
    }
    return Level::scalar;
}

std::optional<Level> level_named(std::string_view name) {
    for (const Level level : kLevels) {
        if (level_name(level) == name) {
            return level;
        }
    }
    return std::nullopt;
}

} // namespace penstock::cpu
