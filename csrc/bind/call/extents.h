// Evaluates extent expressions such as "[T, H * D]" from the named extents of one call. Does not
// use Python.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "plan/recorder.h"

namespace penstock::bind {

// An extent at the largest step, and its axis if it varies per step.
struct Extent {
    int64_t value = 0;
    Axis axis = Axis::fixed;
    bool operator==(const Extent&) const = default;
};

class Symbols {
  public:
    void set(const std::string& name, Extent extent) { extents_[name] = extent; }

    // True if the expression is a single name. Only such an expression may define a name; all
    // others use names that are already defined.
    static bool is_name(std::string_view expression);

    // Evaluates a sum of products of names and numbers without spaces, e.g. "2*K*D+H*D". Returns
    // nullopt if a name is unknown. "R+1" has the axis `row_starts` if R has the axis `rows`; other
    // expressions of several terms or factors have a fixed extent.
    std::optional<Extent> evaluate(std::string_view expression) const;

  private:
    std::optional<int64_t> product(std::string_view term) const;

    std::map<std::string, Extent, std::less<>> extents_;
};

} // namespace penstock::bind
