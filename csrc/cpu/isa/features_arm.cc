// Features of 64-bit ARM, as the Linux kernel reports them.
#if defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <array>

#include "cpu/isa/features.h"

namespace penstock::cpu {

std::span<const Feature> features() {
    static const std::array<Feature, 1> found{{
        {Isa::neon, "asimddp", (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0},
    }};
    return found;
}

} // namespace penstock::cpu

#endif
