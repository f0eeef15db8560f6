// Identifies processors whose best loop order differs although they have the same instruction sets.
// The processor affects no bit of a result.
#pragma once

#include <cstdint>

namespace penstock::cpu {

enum class Processor : uint8_t {
    other,
    amd,  // AMD processors up to Zen 4
    zen5, // and later
};

// Returns the processor of this machine, identified by CPUID; `other` on other architectures.
Processor processor();

} // namespace penstock::cpu
