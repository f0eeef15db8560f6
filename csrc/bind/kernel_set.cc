#include "bind/kernel_set.h"

namespace penstock::bind {

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

const Kernel& KernelSet::find(const std::string& name) const {
    const Kernel* kernel = cpu::kernels(level_).find(name);
    if (kernel == nullptr) {
        throw pybind11::key_error("level " + level_name() + " has no kernel " + name);
    }
    return *kernel;
}

} // namespace penstock::bind
