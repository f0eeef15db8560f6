// The kernels of one level or of several that agree, as Python holds them, and the packed weights
// that they take.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/arithmetic.h"
#include "cpu/dispatch.h"
#include "cpu/pack.h"
#include "penstock/kernel_choice.h"

namespace penstock::bind {

// "auto" or the name of a level. Raises ValueError for an unknown name, and for a level that this
// machine cannot run, naming the CPU feature it lacks.
cpu::Level resolve_level(const std::string& name);

// The level of calls of at most `most_rows` rows.
struct RowLevel {
    int64_t most_rows = 0;
    cpu::Level level = cpu::Level::scalar;
};

class KernelSet {
  public:
    // By the name of a family: most rows (none: any number) and level, ascending.
    using ByRows =
        std::map<std::string, std::vector<std::pair<std::optional<int64_t>, std::string>>>;

    // `level`: whose arithmetic products have, and that weights are packed for; `attention` and
    // `other`: likewise of attention and of all else, `level` where empty. `by_rows`: levels that
    // serve where they give the bits of these. Raises ValueError as resolve_level does, and for
    // ranges that do not ascend.
    KernelSet(const std::string& level, const std::string& attention, const std::string& other,
              const ByRows& by_rows);

    cpu::Level level() const { return products_; }
    // The level whose arithmetic the kernels of a family have.
    cpu::Level level(cpu::Family family) const;
    const std::vector<RowLevel>& by_rows(cpu::Family family) const {
        return by_rows_[static_cast<size_t>(family)];
    }

  private:
    cpu::Level products_;
    cpu::Level attention_;
    cpu::Level other_;
    std::array<std::vector<RowLevel>, 5> by_rows_;
};

// A kernel of that name. Raises KeyError where the level has none.
const Kernel& find_kernel(cpu::Level level, const std::string& name);

// A packed linear layer with the level it was packed for.
struct PackedWeights {
    PackedWeights(std::span<const cpu::MatrixSource> parts, const float* bias,
                  cpu::Level packed_for, cpu::Use use)
        : linear(parts, bias, packed_for, use), level(packed_for) {}

    cpu::PackedLinear linear;
    cpu::Level level;
};

} // namespace penstock::bind
