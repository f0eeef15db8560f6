// The kernels of one ISA or of several that agree, as Python holds them, and the packed weights
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

#include "cpu/bit_exact.h"
#include "cpu/isa/dispatch.h"
#include "cpu/pack/pack.h"
#include "penstock/kernel_choice.h"

namespace penstock::bind {

// "auto" or the name of an ISA. Raises ValueError for an unknown name, and for an ISA that this
// machine cannot run, naming the CPU feature it lacks.
cpu::Isa resolve_isa(const std::string& name);

// The ISA of calls of at most `most_rows` rows.
struct RowsIsa {
    int64_t most_rows = 0;
    cpu::Isa isa = cpu::Isa::scalar;
};

class KernelSet {
  public:
    // By the name of a family: most rows (none: any number) and ISA, ascending.
    using ByRows =
        std::map<std::string, std::vector<std::pair<std::optional<int64_t>, std::string>>>;

    // `isa`: whose arithmetic products have, and that weights are packed for; `attention` and
    // `other`: likewise of attention and of all else, `isa` where empty. `by_rows`: ISAs that
    // serve where they give the bits of these. Raises ValueError as resolve_isa does, and for
    // ranges that do not ascend.
    KernelSet(const std::string& isa, const std::string& attention, const std::string& other,
              const ByRows& by_rows);

    cpu::Isa isa() const { return products_; }
    // The ISA whose arithmetic the kernels of a family have.
    cpu::Isa isa(cpu::Family family) const;
    const std::vector<RowsIsa>& by_rows(cpu::Family family) const {
        return by_rows_[static_cast<size_t>(family)];
    }

  private:
    cpu::Isa products_;
    cpu::Isa attention_;
    cpu::Isa other_;
    std::array<std::vector<RowsIsa>, 5> by_rows_;
};

// A kernel of that name. Raises KeyError where the ISA has none.
const Kernel& find_kernel(cpu::Isa isa, const std::string& name);

// A packed linear layer with the ISA it was packed for.
struct PackedWeights {
    PackedWeights(std::span<const cpu::MatrixSource> parts, const float* bias, cpu::Isa packed_for,
                  cpu::Use use)
        : linear(parts, bias, packed_for, use), isa(packed_for) {}

    cpu::PackedLinear linear;
    cpu::Isa isa;
};

} // namespace penstock::bind
