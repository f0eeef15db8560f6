// The kernels of one level, as Python holds them, and the packed weights that they take.
#pragma once

#include <pybind11/pybind11.h>

#include <span>
#include <string>
#include <string_view>

#include "cpu/dispatch.h"
#include "cpu/pack.h"

namespace penstock::bind {

// "auto" or the name of a level. Raises ValueError for an unknown name, and for a level that this
// machine cannot run, naming the CPU feature it lacks.
cpu::Level resolve_level(const std::string& name);

class KernelSet {
  public:
    explicit KernelSet(const std::string& level) : level_(resolve_level(level)) {}

    cpu::Level level() const { return level_; }
    std::string level_name() const { return std::string(cpu::level_name(level_)); }

    // Raises KeyError where the level has no such kernel.
    const Kernel& find(const std::string& name) const;

  private:
    cpu::Level level_;
};

// A packed linear layer with the level it was packed for.
struct PackedWeights {
    PackedWeights(std::span<const cpu::MatrixSource> parts, const float* bias,
                  cpu::Level packed_for, cpu::Use use)
        : linear(parts, bias, packed_for, use), level(packed_for) {}

    cpu::PackedLinear linear;
    cpu::Level level;
};

} // namespace penstock::bind
