#include "cpu/isa/dispatch.h"

#include "cpu/isa/features.h"

namespace penstock::cpu {
namespace {

// Returns the ISA for which the code of `isa` is compiled: emulated ISAs are float arrays compiled
// for avx2.
Isa compiled_for(Isa isa) {
    switch (isa) {
    case Isa::emulated_avx512:
    case Isa::emulated_avx512_bf16:
    case Isa::emulated_amx: return Isa::avx2;
    case Isa::scalar:
    case Isa::neon:
    case Isa::avx2:
    case Isa::avx_vnni:
    case Isa::avx512:
    case Isa::avx512_bf16:
    case Isa::amx: return isa;
    }
    return isa;
}

constexpr std::string_view x86 = "an x86-64 processor", arm = "an ARMv8 processor";
#if defined(__x86_64__)
constexpr std::string_view here = x86;
#elif defined(__aarch64__)
constexpr std::string_view here = arm;
#else
constexpr std::string_view here = "";
#endif

bool needs(Isa isa, const Feature& feature) {
    return feature.isa == Isa::avx_vnni ? isa == feature.isa : isa >= feature.isa;
}

} // namespace

std::string_view missing_feature(Isa isa) {
    const std::string_view architecture = isa == Isa::neon ? arm : x86;
    if (isa != Isa::scalar && architecture != here) {
        return architecture;
    }
    if (!is_built(isa)) {
        return isa == compiled_for(isa) ? "a build with PENSTOCK_ISAS=all"
                                        : "a build with PENSTOCK_EMULATED=ON";
    }
    for (const Feature& feature : features()) {
        if (needs(compiled_for(isa), feature) && !feature.present) {
            return feature.name;
        }
    }
    return {};
}

Isa best_isa() {
    for (const Isa isa :
         {Isa::amx, Isa::avx512_bf16, Isa::avx512, Isa::avx_vnni, Isa::avx2, Isa::neon}) {
        if (missing_feature(isa).empty()) {
            return isa;
        }
    }
    return Isa::scalar;
}

std::optional<Isa> find_isa(std::string_view name) {
    for (const Isa isa : kIsas) {
        if (isa_name(isa) == name) {
            return isa;
        }
    }
    return std::nullopt;
}

} // namespace penstock::cpu
