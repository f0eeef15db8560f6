// Identifies processors whose best loop order differs although their instruction sets are equal.
// Results do not depend on it in any bit.
#pragma once

#include <cstdint>

namespace penstock::cpu {

enum class Processor : uint8_t {
    other,
    amd,  // up to Zen 4
    zen5, // and its successors
};

// This machine's processor, by CPUID; `other` on other architectures.
Processor processor();

} // namespace penstock::cpu
