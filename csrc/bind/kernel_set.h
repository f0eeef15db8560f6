// The kernels that serve a model (from one or several ISAs), and packed weights.
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

// Returns the ISA with this name; "auto" is the widest ISA of the machine. Raises ValueError for an
// unknown name, and for an ISA that this machine cannot run, naming the missing CPU feature.
cpu::Isa resolve_isa(const std::string& name);

// An ISA that serves calls of at most `max_rows` rows.
struct RowsIsa {
    int64_t max_rows = 0;
    cpu::Isa isa = cpu::Isa::scalar;
};

class KernelSet {
  public:
    // By kernel family: (maximum rows or None for no limit, ISA), in ascending order of rows.
    using ByRows =
        std::map<std::string, std::vector<std::pair<std::optional<int64_t>, std::string>>>;

    // `isa` sets the arithmetic of matrix products and the format of packed weights. `attention`
    // and `other` set the ISA of attention and of all other kernels; empty means `isa`. `by_rows`
    // lists, per kernel family, ISAs that serve calls up to a number of rows if they give the same
    // bits as the family's own ISA. `prompts` sets the ISA with tiles that multiplies prompt tokens
    // by integer weights; empty: they have the arithmetic of all tokens. Raises ValueError like
    // resolve_isa, for ranges that do not ascend, and for an ISA without tiles.
    KernelSet(const std::string& isa, const std::string& attention, const std::string& other,
              const ByRows& by_rows, const std::string& prompts);

    cpu::Isa isa() const { return products_; }
    const std::optional<cpu::Isa>& prompts() const { return prompts_; }
    // Returns the ISA that defines the arithmetic of a kernel family.
    cpu::Isa isa(cpu::Family family) const;
    const std::vector<RowsIsa>& by_rows(cpu::Family family) const {
        return by_rows_[static_cast<size_t>(family)];
    }

  private:
    cpu::Isa products_;
    cpu::Isa attention_;
    cpu::Isa other_;
    std::optional<cpu::Isa> prompts_;
    std::array<std::vector<RowsIsa>, cpu::kNumFamilies> by_rows_;
};

// Returns the kernel with this name. Raises KeyError if the ISA does not have it.
const Kernel& find_kernel(cpu::Isa isa, const std::string& name);

// A packed linear layer, and the ISA for which it is packed.
struct PackedWeights {
    PackedWeights(std::span<const cpu::MatrixSource> parts, const float* bias, cpu::Isa packed_for,
                  cpu::Use use)
        : linear(parts, bias, packed_for, use), isa(packed_for) {}

    cpu::PackedLinear linear;
    cpu::Isa isa;
};

} // namespace penstock::bind
