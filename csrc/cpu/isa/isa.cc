#include "cpu/isa/isa.h"

#include <cassert>

namespace penstock::cpu {

const Kernel* KernelTable::find(std::string_view name) const {
    for (const auto& family : families) {
        for (const Kernel& kernel : family) {
            if (name == kernel.name)
                return &kernel;
        }
    }
    return base == nullptr ? nullptr : base().find(name);
}

namespace {

// Returns the kernels of an ISA, or null for an ISA that isa.cmake left out of this build.
const KernelTable* table(Isa isa) {
    switch (isa) {
#ifdef PENSTOCK_HAS_SCALAR
    case Isa::scalar: return &kernels_scalar();
#endif
#ifdef PENSTOCK_HAS_NEON
    case Isa::neon: return &kernels_neon();
#endif
#ifdef PENSTOCK_HAS_AVX2
    case Isa::avx2: return &kernels_avx2();
#endif
#ifdef PENSTOCK_HAS_AVX_VNNI
    case Isa::avx_vnni: return &kernels_avx_vnni();
#endif
#ifdef PENSTOCK_HAS_AVX512
    case Isa::avx512: return &kernels_avx512();
#endif
#ifdef PENSTOCK_HAS_AVX512_BF16
    case Isa::avx512_bf16: return &kernels_avx512_bf16();
#endif
#ifdef PENSTOCK_HAS_AMX
    case Isa::amx: return &kernels_amx();
#endif
#ifdef PENSTOCK_HAS_EMULATED_AVX512
    case Isa::emulated_avx512: return &kernels_emulated_avx512();
#endif
#ifdef PENSTOCK_HAS_EMULATED_AVX512_BF16
    case Isa::emulated_avx512_bf16: return &kernels_emulated_avx512_bf16();
#endif
#ifdef PENSTOCK_HAS_EMULATED_AMX
    case Isa::emulated_amx: return &kernels_emulated_amx();
#endif
    default: return nullptr;
    }
}

} // namespace

bool is_built(Isa isa) {
    return table(isa) != nullptr;
}

const KernelTable& kernels(Isa isa) {
    assert(is_built(isa));
    return *table(isa);
}

std::string_view isa_name(Isa isa) {
    switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::neon: return "neon";
    case Isa::avx2: return "avx2";
    case Isa::avx_vnni: return "avx_vnni";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx: return "amx";
    case Isa::emulated_avx512: return "emulated_avx512";
    case Isa::emulated_avx512_bf16: return "emulated_avx512_bf16";
    case Isa::emulated_amx: return "emulated_amx";
    }
    return "scalar";
}

} // namespace penstock::cpu
