#include "cpu/dispatch.h"

#include <cpuid.h>

#include <array>

namespace penstock::cpu {
namespace {

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

// What the operating system saves at a context switch; 0 where it does not say.
uint64_t saved_state(const Registers& leaf1) {
    constexpr unsigned osxsave = 1U << 27;
    if ((leaf1.ecx & osxsave) == 0) {
        return 0;
    }
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

constexpr bool bit(unsigned value, int index) {
    return (value >> index & 1U) != 0;
}

struct Feature {
    Level level; // the lowest real level that needs it, as do those above; avx_vnni: it alone
    std::string_view name;
    bool present;
};

constexpr uint64_t ymm_state = 0x6;
constexpr uint64_t zmm_state = 0xe6;
constexpr uint64_t tile_state = 0x60000;

std::array<Feature, 17> detect() {
    const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf7_1 = cpuid(7, 1);
    const uint64_t saved = saved_state(leaf1);
    const bool ymm = (saved & ymm_state) == ymm_state, zmm = (saved & zmm_state) == zmm_state;
    const bool tile_registers = zmm && (saved & tile_state) == tile_state;
    const bool amx_tile = tile_registers && bit(leaf7.edx, 24);
    return {{
        {Level::avx2, "avx", ymm && bit(leaf1.ecx, 28)},
        {Level::avx2, "f16c", ymm && bit(leaf1.ecx, 29)},
        {Level::avx2, "fma", ymm && bit(leaf1.ecx, 12)},
        {Level::avx2, "avx2", ymm && bit(leaf7.ebx, 5)},
        {Level::avx2, "bmi1", bit(leaf7.ebx, 3)},
        {Level::avx2, "bmi2", bit(leaf7.ebx, 8)},
        {Level::avx_vnni, "avx_vnni", ymm && bit(leaf7_1.eax, 4)},
        {Level::avx512, "avx512f", zmm && bit(leaf7.ebx, 16)},
        {Level::avx512, "avx512bw", zmm && bit(leaf7.ebx, 30)},
        {Level::avx512, "avx512dq", zmm && bit(leaf7.ebx, 17)},
        {Level::avx512, "avx512vl", zmm && bit(leaf7.ebx, 31)},
        {Level::avx512, "avx512_vnni", zmm && bit(leaf7.ecx, 11)},
        {Level::avx512_bf16, "avx512_bf16", zmm && bit(leaf7_1.eax, 5)},
        {Level::amx, "amx_tile", amx_tile},
        {Level::amx, "amx_int8", tile_registers && bit(leaf7.edx, 25)},
        {Level::amx, "amx_bf16", tile_registers && bit(leaf7.edx, 22)},
        {Level::amx, "amx_tile (permission refused by the kernel)",
         amx_tile && request_amx_tiles()},
    }};
}

// What a level is compiled with: emulated ones are arrays of floats compiled for avx2.
Level compiled_for(Level level) {
    switch (level) {
    case Level::emulated_avx512:
    case Level::emulated_avx512_bf16:
    case Level::emulated_amx: return Level::avx2;
    case Level::scalar:
    case Level::avx2:
    case Level::avx_vnni:
    case Level::avx512:
    case Level::avx512_bf16:
    case Level::amx: return level;
    }
    return level;
}

bool needs(Level level, const Feature& feature) {
    return feature.level == Level::avx_vnni ? level == feature.level : level >= feature.level;
}

} // namespace

std::string_view missing_feature(Level level) {
    if (!is_built(level)) {
        return level == compiled_for(level) ? "a build with PENSTOCK_LEVELS=all"
                                            : "a build with PENSTOCK_EMULATED=ON";
    }
    static const auto features = detect();
    for (const Feature& feature : features) {
        if (needs(compiled_for(level), feature) && !feature.present) {
            return feature.name;
        }
    }
    return {};
}

Level best_level() {
    for (const Level level :
         {Level::amx, Level::avx512_bf16, Level::avx512, Level::avx_vnni, Level::avx2}) {
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
