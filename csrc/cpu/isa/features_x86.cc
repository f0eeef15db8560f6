// Features of x86-64: CPUID reports instructions, XCR0 the registers that the operating system
// saves.
#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "cpu/isa/features.h"

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

// Returns XCR0, the register state that is saved at a context switch; 0 without OSXSAVE.
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

constexpr uint64_t ymm_state = 0x6;
constexpr uint64_t zmm_state = 0xe6;
constexpr uint64_t tile_state = 0x60000;

// Requests permission to use the AMX tile data registers from the Linux kernel, once per process
// and before threads start. Returns false if Linux refuses; the amx ISA must not be used then.
bool request_amx_tiles() {
    constexpr long kRequestPermission = 0x1023; // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;              // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::array<Feature, 17> detect() {
    const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf7_1 = cpuid(7, 1);
    const uint64_t saved = saved_state(leaf1);
    const bool ymm = (saved & ymm_state) == ymm_state, zmm = (saved & zmm_state) == zmm_state;
    const bool tile_registers = zmm && (saved & tile_state) == tile_state;
    const bool amx_tile = tile_registers && bit(leaf7.edx, 24);
    return {{
        {Isa::avx2, "avx", ymm && bit(leaf1.ecx, 28)},
        {Isa::avx2, "f16c", ymm && bit(leaf1.ecx, 29)},
        {Isa::avx2, "fma", ymm && bit(leaf1.ecx, 12)},
        {Isa::avx2, "avx2", ymm && bit(leaf7.ebx, 5)},
        {Isa::avx2, "bmi1", bit(leaf7.ebx, 3)},
        {Isa::avx2, "bmi2", bit(leaf7.ebx, 8)},
        {Isa::avx_vnni, "avx_vnni", ymm && bit(leaf7_1.eax, 4)},
        {Isa::avx512, "avx512f", zmm && bit(leaf7.ebx, 16)},
        {Isa::avx512, "avx512bw", zmm && bit(leaf7.ebx, 30)},
        {Isa::avx512, "avx512dq", zmm && bit(leaf7.ebx, 17)},
        {Isa::avx512, "avx512vl", zmm && bit(leaf7.ebx, 31)},
        {Isa::avx512, "avx512_vnni", zmm && bit(leaf7.ecx, 11)},
        {Isa::avx512_bf16, "avx512_bf16", zmm && bit(leaf7_1.eax, 5)},
        {Isa::amx, "amx_tile", amx_tile},
        {Isa::amx, "amx_int8", tile_registers && bit(leaf7.edx, 25)},
        {Isa::amx, "amx_bf16", tile_registers && bit(leaf7.edx, 22)},
        {Isa::amx, "amx_tile (permission refused by the kernel)", amx_tile && request_amx_tiles()},
    }};
}

} // namespace

std::span<const Feature> features() {
    static const auto found = detect();
    return found;
}

} // namespace penstock::cpu

#endif
