#include "bind/call/extents.h"

#include <charconv>

namespace penstock::bind {
namespace {

// Removes and returns the text before `separator`.
std::string_view cut(std::string_view& rest, char separator) {
    const size_t at = rest.find(separator);
    const std::string_view head = rest.substr(0, at);
    rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
    return head;
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

} // namespace

bool Symbols::is_name(std::string_view expression) {
    return expression.find_first_of("+*") == std::string_view::npos && !is_digit(expression[0]);
}

std::optional<int64_t> Symbols::product(std::string_view term) const {
    int64_t value = 1;
    while (!term.empty()) {
        const std::string_view factor = cut(term, '*');
        if (is_digit(factor[0])) {
            int64_t number = 0;
            std::from_chars(factor.data(), factor.data() + factor.size(), number);
            value *= number;
        } else if (const auto known = extents_.find(factor); known != extents_.end()) {
            value *= known->second.value;
        } else {
            return std::nullopt;
        }
    }
    return value;
}

std::optional<Extent> Symbols::evaluate(std::string_view expression) const {
    if (is_name(expression)) {
        const auto known = extents_.find(expression);
        return known == extents_.end() ? std::nullopt : std::optional(known->second);
    }
    Extent sum;
    for (std::string_view rest = expression; !rest.empty();) {
        const auto term = product(cut(rest, '+'));
        if (!term) {
            return std::nullopt;
        }
        sum.value += *term;
    }
    const auto rows = extents_.find(expression.substr(0, expression.find('+')));
    if (expression == "R+1" && rows->second.axis == Axis::rows) {
        sum.axis = Axis::row_starts;
    }
    return sum;
}

} // namespace penstock::bind
