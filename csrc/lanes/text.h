// Text as it goes into a frame: whole characters, escaped for JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::lanes {

struct Whole {
    size_t size; // bytes of whole characters at the start
    bool bad;    // what follows them cannot begin a character, whatever comes next
};

// How much of `bytes` is whole characters of UTF-8 (Unicode 15, table 3-7).
Whole whole_characters(std::string_view bytes);

// Append a text as a JSON string without its quotes; `text` is valid UTF-8. Only what must be
// escaped is, in the shortest way, as orjson does it.
void append_json(std::string& out, std::string_view text);

} // namespace penstock::lanes
