// An empty feature list, for architectures that have only the scalar ISA.
#if !defined(__x86_64__) && !defined(__aarch64__)

#include "cpu/isa/features.h"

namespace penstock::cpu {

std::span<const Feature> features() {
    return {};
}

} // namespace penstock::cpu

#endif
