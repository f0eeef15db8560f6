#include "bind/kernel_set.h"

namespace penstock::bind {
namespace {

std::vector<RowLevel>
resolve_ranges(const std::string& family,
               const std::vector<std::pair<std::optional<int64_t>, std::string>>& given) {
    std::vector<RowLevel> ranges;
    for (const auto& [most_rows, name] : given) {
        const int64_t most = most_rows.value_or(KernelChoice::unlimited);
        if (most < 1 || (!ranges.empty() && most <= ranges.back().most_rows)) {
            throw pybind11::value_error("by_rows: " + family + ": the ranges must ascend");
        }
        ranges.push_back({most, resolve_level(name)});
    }
    if (ranges.size() >= KernelChoice::most_ranges) {
        throw pybind11::value_error("by_rows: " + family + ": has too many ranges");
    }
    return ranges;
}

} // namespace

cpu::Level resolve_level(const std::string& name) {
    if (name == "auto") {
        return cpu::best_level();
    }
    const auto level = cpu::level_named(name);
    if (!level) {
        std::string known = "auto";
        for (const cpu::Level one : cpu::kLevels)
            known += ", " + std::string(cpu::level_name(one));
        throw pybind11::value_error("no such level: " + name + " (" + known + ")");
    }
    if (const auto missing = cpu::missing_feature(*level); !missing.empty()) {
        throw pybind11::value_error("level " + name + " cannot run here: it needs " +
                                    std::string(missing));
    }
    return *level;
}

KernelSet::KernelSet(const std::string& level, const std::string& attention,
                     const std::string& other, const ByRows& by_rows)
    : products_(resolve_level(level)),
      attention_(attention.empty() ? products_ : resolve_level(attention)),
      other_(other.empty() ? products_ : resolve_level(other)) {
    for (const auto& [name, ranges] : by_rows) {
        const auto family = cpu::family_named(name);
        if (!family) {
            throw pybind11::value_error("by_rows: no such family of kernels: " + name);
        }
        by_rows_[static_cast<size_t>(*family)] = resolve_ranges(name, ranges);
    }
}

cpu::Level KernelSet::level(cpu::Family family) const {
    switch (family) {
    case cpu::Family::attention: return attention_;
    case cpu::Family::other: return other_;
    case cpu::Family::affine:
    case cpu::Family::dense:
    case cpu::Family::experts: break;
    }
    return products_;
}

const Kernel& find_kernel(cpu::Level level, const std::string& name) {
    const Kernel* kernel = cpu::kernels(level).find(name);
    if (kernel == nullptr) {
        throw pybind11::key_error("level " + std::string(cpu::level_name(level)) +
                                  " has no kernel " + name);
    }
    return *kernel;
}

} // namespace penstock::bind
