#include "bind/call/call_kernels.h"

#include "cpu/pack/expert_layer.h"

namespace penstock::bind {
namespace {

bool agrees(const CheckedCall& call, cpu::Family family, cpu::Isa a, cpu::Isa b) {
    const auto same_products = [&](const cpu::LinearWeights& packed_tiles) {
        return cpu::affine_bit_exact(packed_tiles, a, b) &&
               cpu::dense_bit_exact(packed_tiles, a, b);
    };
    switch (family) {
    case cpu::Family::affine:
        return cpu::affine_bit_exact(*static_cast<const cpu::LinearWeights*>(call.object), a, b);
    case cpu::Family::dense:
        return cpu::dense_bit_exact(*static_cast<const cpu::LinearWeights*>(call.object), a, b);
    case cpu::Family::experts: {
        const auto& packed_tiles = *static_cast<const cpu::ExpertWeights*>(call.object);
        return same_products(packed_tiles.gate_up.packed_tiles) &&
               same_products(packed_tiles.down.packed_tiles);
    }
    case cpu::Family::attention: {
        const std::string& kernel = call.signature->kernel;
        const bool shared = call.integers.at(0) > call.integers.at(1) ||
                            kernel == "rounded_attention" || kernel == "latent_attention";
        return cpu::attention_bit_exact(shared && call.tensors.at(4).view.dtype == DType::f16, a,
                                        b);
    }
    case cpu::Family::prompts: return cpu::prompts_bit_exact(a, b);
    case cpu::Family::other: break;
    }
    return cpu::other_bit_exact(a, b);
}

} // namespace

KernelChoice kernels_of(const KernelSet& kernels, const CheckedCall& call,
                        const std::string& name) {
    const cpu::Family family = cpu::family_of(name);
    const cpu::Isa own = kernels.isa(family);
    KernelChoice choice;
    int64_t reached = 0;
    for (const RowsIsa& range : kernels.by_rows(family)) {
        const cpu::Isa isa = agrees(call, family, own, range.isa) ? range.isa : own;
        choice.add(range.max_rows, find_kernel(isa, name));
        reached = range.max_rows;
    }
    if (reached != KernelChoice::unlimited) {
        choice.add(KernelChoice::unlimited, find_kernel(own, name));
    }
    return choice;
}

} // namespace penstock::bind
