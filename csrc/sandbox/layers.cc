#include "sandbox/layers.h"

#include <cstdio>

namespace penstock::sandbox {
namespace {

std::string quoted(const std::string& text) {
    std::string json = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            json += '\\';
            json += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\u%04x", c);
            json += escape;
        } else {
            json += c;
        }
    }
    return json + "\"";
}

} // namespace

std::string to_json(const Layers& layers, const std::string& work, const std::string& temporary) {
    constexpr const char* networks[] = {"none", "loopback", "full"};
    std::string json = "{";
    for (const auto& [name, holds] : {std::pair{"namespaces", layers.namespaces},
                                      {"landlock", layers.landlock},
                                      {"seccomp", layers.seccomp},
                                      {"limits", layers.limits},
                                      {"cgroup", layers.cgroup}})
        json += quoted(name) + ":" + (holds ? "true," : "false,");
    json += "\"network\":" + quoted(networks[static_cast<int>(layers.network)]);
    json += ",\"working_directory\":" + quoted(work);
    json += ",\"temporary_directory\":" + quoted(temporary) + ",\"missing\":[";
    for (size_t i = 0; i < layers.missing.size(); ++i)
        json += (i ? ",[" : "[") + quoted(layers.missing[i].layer) + "," +
                quoted(layers.missing[i].reason) + "]";
    return json + "]}";
}

} // namespace penstock::sandbox
