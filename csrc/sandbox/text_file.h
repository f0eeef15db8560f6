// Small text files of the kernel.
#pragma once

#include <string>

#include "sandbox/system.h"

namespace penstock::sandbox {

// Returns the content, at most 64 KiB of it; empty if the file cannot be read.
inline std::string read_text(const std::string& path) {
    std::string text(65536, '\0');
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    size_t size = 0;
    while (file && size < text.size()) {
        const ssize_t part = read(file.get(), text.data() + size, text.size() - size);
        if (part <= 0)
            break;
        size += static_cast<size_t>(part);
    }
    text.resize(size);
    return text;
}

inline bool write_text(const std::string& path, const std::string& text) {
    const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

} // namespace penstock::sandbox
