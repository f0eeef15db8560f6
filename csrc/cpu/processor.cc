#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace penstock::cpu {
namespace {

#if defined(__x86_64__)
Processor detect() {
    constexpr unsigned kZen5Family = 0x1a;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    __get_cpuid(0, &eax, &ebx, &ecx, &edx);
    if (ebx != signature_AMD_ebx || ecx != signature_AMD_ecx || edx != signature_AMD_edx)
        return Processor::other;
    __get_cpuid(1, &eax, &ebx, &ecx, &edx);
    const unsigned base = eax >> 8 & 0xf, extended = eax >> 20 & 0xff;
    return base + (base == 0xf ? extended : 0) >= kZen5Family ? Processor::zen5 : Processor::amd;
}
#else
Processor detect() {
    return Processor::other;
}
#endif

} // namespace

Processor processor() {
    static const Processor detected = detect();
    return detected;
}

} // namespace penstock::cpu
