#include "cpu/level.h"

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

// Null for a level that levels.cmake left out of this build.
const KernelTable* table(Level level) {
    switch (level) {
#ifdef PENSTOCK_HAS_SCALAR
    case Level::scalar: return &kernels_scalar();
#endif
#ifdef PENSTOCK_HAS_NEON
    case Level::neon: return &kernels_neon();
#endif
#ifdef PENSTOCK_HAS_AVX2
    case Level::avx2: return &kernels_avx2();
#endif
#ifdef PENSTOCK_HAS_AVX_VNNI
    case Level::avx_vnni: return &kernels_avx_vnni();
#endif
#ifdef PENSTOCK_HAS_AVX512
    case Level::avx512: return &kernels_avx512();
#endif
#ifdef PENSTOCK_HAS_AVX512_BF16
    case Level::avx512_bf16: return &kernels_avx512_bf16();
#endif
#ifdef PENSTOCK_HAS_AMX
    case Level::amx: return &kernels_amx();
#endif
#ifdef PENSTOCK_HAS_EMULATED_AVX512
    case Level::emulated_avx512: return &kernels_emulated_avx512();
#endif
#ifdef PENSTOCK_HAS_EMULATED_AVX512_BF16
    case Level::emulated_avx512_bf16: return &kernels_emulated_avx512_bf16();
#endif
#ifdef PENSTOCK_HAS_EMULATED_AMX
    case Level::emulated_amx: return &kernels_emulated_amx();
#endif
    default: return nullptr;
    }
}

} // namespace

bool is_built(Level level) {
    return table(level) != nullptr;
}

const KernelTable& kernels(Level level) {
    assert(is_built(level));
    return *table(level);
}

std::string_view level_name(Level level) {
    switch (level) {
    case Level::scalar: return "scalar";
    case Level::neon: return "neon";
    case Level::avx2: return "avx2";
    case Level::avx_vnni: return "avx_vnni";
    case Level::avx512: return "avx512";
    case Level::avx512_bf16: return "avx512_bf16";
    case Level::amx: return "amx";
    case Level::emulated_avx512: return "emulated_avx512";
    case Level::emulated_avx512_bf16: return "emulated_avx512_bf16";
    case Level::emulated_amx: return "emulated_amx";
    }
    return "scalar";
}

} // namespace penstock::cpu
