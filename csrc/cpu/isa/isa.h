// The ISAs: every kernel is compiled once per instruction set, and found through a table per ISA.
//
// A kernel family is one file, `<family>.inl.h`, written over simd.h. It contains
//
//     namespace penstock::cpu::PENSTOCK_ISA {
//     namespace {
//     ... phases, tasks, run, workspace_bytes of each kernel ...
//     constexpr Kernel k<Family>Kernels[] = {{"name", phases, tasks, run, workspace_bytes}, ...};
//     }  // namespace
//     }  // namespace penstock::cpu::PENSTOCK_ISA
//
// and contains no code outside that namespace. A family includes only simd.h, interfaces of
// include/penstock and headers whose functions are PENSTOCK_INLINE. It calls no inline or template
// function of the standard library, except those that are constexpr and trivial: other such
// functions, compiled here with wide instructions, could be linked in place of the baseline's copy.
// all_kernels.inl.h includes the families, product_kernels.inl.h those that differ from another
// ISA's; <isa>.cc defines the ISA and includes one of them; isa.cmake holds each file's flags. All
// other code is compiled for the baseline.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "penstock/kernel.h"

#define PENSTOCK_JOIN_(a, b) a##b
#define PENSTOCK_JOIN(a, b) PENSTOCK_JOIN_(a, b)

namespace penstock::cpu {

enum class Isa : uint8_t {
    scalar,
    neon,
    avx2,
    avx_vnni,
    avx512,
    avx512_bf16,
    amx,
    emulated_avx512,
    emulated_avx512_bf16,
    emulated_amx
};

constexpr std::array<Isa, 10> kIsas{Isa::scalar,
                                    Isa::neon,
                                    Isa::avx2,
                                    Isa::avx_vnni,
                                    Isa::avx512,
                                    Isa::avx512_bf16,
                                    Isa::amx,
                                    Isa::emulated_avx512,
                                    Isa::emulated_avx512_bf16,
                                    Isa::emulated_amx};

// The kernels of one ISA, by family. `base` has the kernels that this table lacks. Static storage;
// never changes.
struct KernelTable {
    std::array<std::span<const Kernel>, 32> families{};
    const KernelTable& (*base)() = nullptr;

    // Returns the kernel with this name, or null.
    const Kernel* find(std::string_view name) const;
};

// Return the table of an ISA; each ISA's file exports one. Calling a kernel of an ISA that the CPU
// lacks is undefined behaviour; the emulated ISAs need AVX2, FMA and F16C.
const KernelTable& kernels_scalar();
const KernelTable& kernels_neon();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx_vnni();
const KernelTable& kernels_avx512();
const KernelTable& kernels_avx512_bf16();
const KernelTable& kernels_amx();
const KernelTable& kernels_emulated_avx512();
const KernelTable& kernels_emulated_avx512_bf16();
const KernelTable& kernels_emulated_amx();

// Returns whether this build contains the ISA: false for an ISA of another architecture, and for an
// ISA that the build options PENSTOCK_ISAS or PENSTOCK_EMULATED leave out.
bool is_built(Isa isa);

// Returns the kernels of an ISA, which this build must contain.
const KernelTable& kernels(Isa isa);

std::string_view isa_name(Isa isa);

// Returns the lanes of the ISA's float vector.
constexpr int lanes(Isa isa) {
    return isa <= Isa::avx_vnni ? 8 : 16;
}

// Returns whether bf16 weights are multiplied in pairs (VDPBF16PS).
constexpr bool has_bf16_pairs(Isa isa) {
    return isa == Isa::avx512_bf16 || isa == Isa::emulated_avx512_bf16;
}

// Returns whether 4-bit weights are packed with paired scales. Embedding tables never are.
constexpr bool has_paired_scales(Isa isa) {
    return has_bf16_pairs(isa);
}

// Returns whether the ISA multiplies weights that are packed as int16.
constexpr bool has_int16_products(Isa isa) {
    return has_bf16_pairs(isa) || isa == Isa::avx2 || isa == Isa::avx_vnni;
}

// Returns whether bf16 weights are packed for bf16 tiles and multiplied in them.
constexpr bool has_bf16_tiles(Isa isa) {
    return isa == Isa::amx || isa == Isa::emulated_amx;
}

// Returns how many rows a thread takes through a segment of kernels: few enough that intermediate
// results stay in its L2 cache, yet enough to amortize reading the weights again (and unpacking
// them to tiles).
constexpr int64_t rows_per_block(Isa isa) {
    return has_bf16_tiles(isa) ? 96 : 64;
}
// The same for plans that tell prompt tokens apart: dequantizing a panel of weights takes as long
// as multiplying 90 rows with it.
constexpr int64_t kPromptRowsPerBlock = 128;

} // namespace penstock::cpu
