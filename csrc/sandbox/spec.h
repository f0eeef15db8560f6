// The description of a container, sent by the server as the first frame.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::sandbox {

enum class Mode : uint32_t { automatic = 0, on = 1, off = 2 };
enum class Network : uint32_t { none = 0, loopback = 1, full = 2 };

struct Spec {
    Mode mode = Mode::automatic;
    Network network = Network::loopback;
    uint64_t memory_bytes = 0;
    uint32_t cpu_seconds = 0;
    uint32_t max_processes = 0;
    // The user and group outside the container if the launcher is root.
    uint32_t outer_id = 0;
    // A folder of the host that becomes the working directory; empty: in memory.
    std::string host_workdir;
    // The name of the cgroup to create.
    std::string cgroup;
    std::vector<std::string> read_only;
    // Names that list_files skips.
    std::vector<std::string> skipped_folders;
    std::vector<std::string> skipped_suffixes;
};

// Returns nothing if the payload is malformed or a path is not an absolute, normal one.
std::optional<Spec> decode_spec(std::string_view payload);

// True for an absolute path without empty, "." and ".." parts.
bool is_normal_path(std::string_view path);

// True for a relative path without empty, "." and ".." parts.
bool is_normal_relative_path(std::string_view path);

} // namespace penstock::sandbox
