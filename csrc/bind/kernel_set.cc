#include "bind/kernel_set.h"

namespace penstock::bind {
namespace {

std::vector<RowsIsa>
resolve_ranges(const std::string& family,
               const std::vector<std::pair<std::optional<int64_t>, std::string>>& given) {
    std::vector<RowsIsa> ranges;
    for (const auto& [max_rows, name] : given) {
        const int64_t max = max_rows.value_or(KernelChoice::unlimited);
        if (max < 1 || (!ranges.empty() && max <= ranges.back().max_rows)) {
            throw pybind11::value_error("by_rows: " + family + ": the ranges must ascend");
        }
        ranges.push_back({max, resolve_isa(name)});
    }
    if (ranges.size() >= KernelChoice::max_ranges) {
        throw pybind11::value_error("by_rows: " + family + ": too many ranges");
    }
    return ranges;
}

} // namespace

cpu::Isa resolve_isa(const std::string& name) {
    if (name == "auto") {
        return cpu::best_isa();
    }
    const auto isa = cpu::find_isa(name);
    if (!isa) {
        std::string known = "auto";
        for (const cpu::Isa one : cpu::kIsas)
            known += ", " + std::string(cpu::isa_name(one));
        throw pybind11::value_error("unknown ISA: " + name + " (" + known + ")");
    }
    if (const auto missing = cpu::missing_feature(*isa); !missing.empty()) {
        throw pybind11::value_error("ISA " + name + " cannot run here: it needs " +
                                    std::string(missing));
    }
    return *isa;
}

KernelSet::KernelSet(const std::string& isa, const std::string& attention, const std::string& other,
                     const ByRows& by_rows, const std::string& prompts)
    : products_(resolve_isa(isa)),
      attention_(attention.empty() ? products_ : resolve_isa(attention)),
      other_(other.empty() ? products_ : resolve_isa(other)) {
    if (!prompts.empty()) {
        prompts_ = resolve_isa(prompts);
        if (!cpu::has_bf16_tiles(*prompts_)) {
            throw pybind11::value_error("prompts: ISA " + prompts + " has no tiles");
        }
    }
    for (const auto& [name, ranges] : by_rows) {
        const auto family = cpu::family_named(name);
        if (!family) {
            throw pybind11::value_error("by_rows: unknown kernel family: " + name);
        }
        by_rows_[static_cast<size_t>(*family)] = resolve_ranges(name, ranges);
    }
}

cpu::Isa KernelSet::isa(cpu::Family family) const {
    switch (family) {
    case cpu::Family::attention: return attention_;
    case cpu::Family::other: return other_;
    case cpu::Family::prompts: return prompts_.value_or(products_);
    case cpu::Family::affine:
    case cpu::Family::dense:
    case cpu::Family::experts: break;
    }
    return products_;
}

const Kernel& find_kernel(cpu::Isa isa, const std::string& name) {
    const Kernel* kernel = cpu::kernels(isa).find(name);
    if (kernel == nullptr) {
        throw pybind11::key_error("ISA " + std::string(cpu::isa_name(isa)) + " has no kernel " +
                                  name);
    }
    return *kernel;
}

} // namespace penstock::bind
