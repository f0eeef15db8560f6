#include "bind/call_kernels.h"

#include "cpu/expert_panels.h"

namespace penstock::bind {
namespace {

bool agrees(const CheckedCall& call, cpu::Family family, cpu::Level a, cpu::Level b) {
    const auto same_products = [&](const cpu::LinearPanels& panels) {
        return cpu::same_affine(panels, a, b) && cpu::same_dense(panels, a, b);
    };
    switch (family) {
    case cpu::Family::affine:
        return cpu::same_affine(*static_cast<const cpu::LinearPanels*>(call.object), a, b);
    case cpu::Family::dense:
        return cpu::same_dense(*static_cast<const cpu::LinearPanels*>(call.object), a, b);
    case cpu::Family::experts: {
        const auto& panels = *static_cast<const cpu::ExpertPanels*>(call.object);
        return same_products(panels.gate_up.panels) && same_products(panels.down.panels);
    }
    case cpu::Family::attention: {
        const bool shared = call.integers.at(0) > call.integers.at(1);
        return cpu::same_attention(shared && call.tensors.at(4).view.dtype == DType::f16, a, b);
    }
    case cpu::Family::other: break;
    }
    return cpu::same_other(a, b);
}

} // namespace

KernelChoice kernels_of(const KernelSet& kernels, const CheckedCall& call,
                        const std::string& name) {
    const cpu::Family family = cpu::family_of(name);
    const cpu::Level own = kernels.level(family);
    KernelChoice choice;
    int64_t reached = 0;
    for (const RowLevel& range : kernels.by_rows(family)) {
        const cpu::Level level = agrees(call, family, own, range.level) ? range.level : own;
        choice.add(range.most_rows, find_kernel(level, name));
        reached = range.most_rows;
    }
    if (reached != KernelChoice::unlimited) {
        choice.add(KernelChoice::unlimited, find_kernel(own, name));
    }
    return choice;
}

} // namespace penstock::bind
