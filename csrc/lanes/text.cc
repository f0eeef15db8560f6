#include "lanes/text.h"

#include <cstdint>

namespace penstock::lanes {
namespace {

struct Lead {
    uint8_t more;      // bytes that follow
    uint8_t low, high; // what the first of them may be
};

// A lead byte of a character of several bytes; `more` 0 where it is none.
Lead lead_of(uint8_t byte) {
    if (byte < 0xC2 || byte > 0xF4) {
        return {0, 0, 0};
    }
    if (byte < 0xE0) {
        return {1, 0x80, 0xBF};
    }
    if (byte < 0xF0) {
        const auto low = static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80); // no longer than need be
        const auto high = static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF); // no surrogates
        return {2, low, high};
    }
    const auto low = static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80);
    const auto high = static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF); // up to U+10FFFF
    return {3, low, high};
}

// The letter of a short escape, 0 where there is none.
char short_escape(char letter) {
    switch (letter) {
    case '"':
    case '\\': return letter;
    case '\b': return 'b';
    case '\t': return 't';
    case '\n': return 'n';
    case '\f': return 'f';
    case '\r': return 'r';
    default: return 0;
    }
}

} // namespace

Whole whole_characters(std::string_view bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
        const auto first = static_cast<uint8_t>(bytes[at]);
        if (first < 0x80) {
            ++at;
            continue;
        }
        const Lead lead = lead_of(first);
        if (lead.more == 0) {
            return {at, true};
        }
        for (size_t k = 1; k <= lead.more; ++k) {
            if (at + k == bytes.size()) {
                return {at, false};
            }
            const auto byte = static_cast<uint8_t>(bytes[at + k]);
            const bool fits =
                k == 1 ? byte >= lead.low && byte <= lead.high : byte >= 0x80 && byte <= 0xBF;
            if (!fits) {
                return {at, true};
            }
        }
        at += 1u + lead.more;
    }
    return {at, false};
}

void append_json(std::string& out, std::string_view text) {
    constexpr char digits[] = "0123456789abcdef";
    size_t shown = 0;
    for (size_t at = 0; at < text.size(); ++at) {
        const char letter = text[at];
        const auto value = static_cast<uint8_t>(letter);
        if (value >= 0x20 && letter != '"' && letter != '\\') {
            continue;
        }
        out.append(text, shown, at - shown);
        shown = at + 1;
        out.push_back('\\');
        if (const char escape = short_escape(letter)) {
            out.push_back(escape);
        } else {
            out.append("u00");
            out.push_back(digits[value >> 4]);
            out.push_back(digits[value & 15]);
        }
    }
    out.append(text, shown);
}

} // namespace penstock::lanes
