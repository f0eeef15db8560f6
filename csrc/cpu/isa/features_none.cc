// No features, for architectures without an ISA of their own.
#if !defined(__x86_64__) && !defined(__aarch64__)

#include "cpu/isa/features.h"

namespace penstock::cpu {

std::span<const Feature> features() {
    return {};
}

} // namespace penstock::cpu

#endif
