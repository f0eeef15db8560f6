// Named extents of one call: what "[T, H * D]" means once T, H and D are known. No Python.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "plan/recorder.h"

namespace penstock::bind {

// An extent at the largest step, and what it counts where it is free.
struct Extent {
    int64_t value = 0;
    Axis axis = Axis::fixed;
    bool operator==(const Extent&) const = default;
};

class Symbols {
  public:
    void set(const std::string& name, Extent extent) { extents_[name] = extent; }

    // True for one name: such an expression may define the name, any other only uses names.
    static bool is_name(std::string_view expression);

    // The value of a sum of products of names and numbers, "2*K*D+H*D", without spaces; none while
    // a name in it is unknown. "R+1" of the free axis `rows` is the free axis `row_starts`; other
    // expressions of several terms or factors are not free.
    std::optional<Extent> evaluate(std::string_view expression) const;

  private:
    std::optional<int64_t> product(std::string_view term) const;

    std::map<std::string, Extent, std::less<>> extents_;
};

} // namespace penstock::bind
