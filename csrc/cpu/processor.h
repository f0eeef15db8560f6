// Which processor this is, where those with the same instructions want the same work in another
// order. No bit of a result depends on it.
#pragma once

#include <cstdint>

namespace penstock::cpu {

enum class Processor : uint8_t {
    other,
    amd,  // up to Zen 4
    zen5, // and its successors
};

// Of this machine, by CPUID; other architectures are not told apart.
Processor processor();

} // namespace penstock::cpu
