#include "sandbox/spec.h"

#include <climits>

#include "sandbox/wire.h"

namespace penstock::sandbox {

bool is_normal_relative_path(std::string_view path) {
    if (path.empty() || path.size() >= PATH_MAX || path.find('\0') != path.npos)
        return false;
    for (size_t begin = 0; begin <= path.size();) {
        const size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view part = path.substr(begin, end - begin);
        if (part.empty() || part == "." || part == ".." || part.size() > NAME_MAX)
            return false;
        begin = end + 1;
    }
    return true;
}

bool is_normal_path(std::string_view path) {
    return path.size() > 1 && path.front() == '/' && is_normal_relative_path(path.substr(1));
}

std::optional<Spec> decode_spec(std::string_view payload) {
    Reader reader(payload);
    Spec spec;
    const uint32_t mode = reader.u32(), network = reader.u32();
    spec.memory_bytes = reader.u64();
    spec.cpu_seconds = reader.u32();
    spec.max_processes = reader.u32();
    spec.outer_id = reader.u32();
    spec.host_workdir = reader.text();
    spec.cgroup = reader.text();
    spec.read_only = reader.texts();
    spec.skipped_folders = reader.texts();
    spec.skipped_suffixes = reader.texts();
    if (!reader.finished() || mode > 2 || network > 2 || spec.memory_bytes == 0 ||
        spec.cpu_seconds == 0 || spec.max_processes == 0 || spec.outer_id == 0)
        return std::nullopt;
    spec.mode = static_cast<Mode>(mode);
    spec.network = static_cast<Network>(network);
    for (const std::string& path : spec.read_only)
        if (!is_normal_path(path))
            return std::nullopt;
    if (!spec.host_workdir.empty() && !is_normal_path(spec.host_workdir))
        return std::nullopt;
    if (!is_normal_relative_path(spec.cgroup) || spec.cgroup.find('/') != std::string::npos)
        return std::nullopt;
    return spec;
}

} // namespace penstock::sandbox
