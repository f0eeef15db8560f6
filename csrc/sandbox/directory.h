// Reading directories without the C library's buffers.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace penstock::sandbox {

// Calls `visit` with the name of each entry but "." and "..", until it returns false. Returns
// whether all entries were visited.
bool each_name(int folder, const std::function<bool(const char*)>& visit);

std::vector<std::string> names_in(int folder);

} // namespace penstock::sandbox
