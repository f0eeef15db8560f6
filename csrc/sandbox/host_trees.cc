#include "sandbox/host_trees.h"

#include <algorithm>
#include <climits>
#include <sys/stat.h>

#include "sandbox/text_file.h"

namespace penstock::sandbox {
namespace {

constexpr const char* kSystemFolders[] = {"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"};
constexpr const char* kEtc[] = {
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ssl",
    "/etc/pki",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/python3",
    "/etc/python3.10",
    "/etc/python3.11",
    "/etc/python3.12",
    "/etc/python3.13",
    "/etc/python3.14",
    "/etc/os-release",
    "/etc/debian_version",
    "/etc/magic",
    "/etc/papersize",
};
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                    "/dev/urandom"};

Failure failed(const std::string& step) {
    return failure("namespaces", step);
}

bool covers(const std::string& path, const std::string& below) {
    return below == path || (below.size() > path.size() && below.starts_with(path + "/"));
}

Failure add(HostTrees& trees, const std::string& path, bool keep_link, uint64_t attributes) {
    for (const Bind& bind : trees.binds)
        if (bind.folder && covers(bind.target, path))
            return {};
    for (const Link& link : trees.links)
        if (covers(link.path, path))
            return {};
    struct stat status;
    if (lstat(path.c_str(), &status) != 0)
        return {};
    if (S_ISLNK(status.st_mode) && keep_link) {
        char target[PATH_MAX];
        const ssize_t size = readlink(path.c_str(), target, sizeof target);
        if (size > 0)
            trees.links.push_back({path, std::string(target, static_cast<size_t>(size))});
        return {};
    }
    if (stat(path.c_str(), &status) != 0)
        return {};
    Descriptor tree(sys::open_tree(AT_FDCWD, path.c_str(), sys::kOpenTreeClone | sys::kRecursive));
    if (!tree)
        return failed("open_tree " + path);
    if (sys::mount_setattr(tree.get(), sys::kRecursive, attributes) != 0)
        return failed("mount_setattr " + path);
    trees.binds.push_back({path, std::move(tree), S_ISDIR(status.st_mode)});
    return {};
}

} // namespace

Failure collect_host_trees(const Spec& spec, HostTrees& trees) {
    constexpr uint64_t read_only = sys::kMountReadOnly | sys::kMountNoSuid | sys::kMountNoDev;
    for (const char* path : kSystemFolders)
        if (Failure f = add(trees, path, true, read_only))
            return f;
    for (const char* path : kEtc)
        if (Failure f = add(trees, path, true, read_only))
            return f;
    for (const char* path : kDevices)
        if (Failure f = add(trees, path, false,
                            sys::kMountReadOnly | sys::kMountNoSuid | sys::kMountNoExec))
            return f;
    std::vector<std::string> roots = spec.read_only;
    std::sort(roots.begin(), roots.end(),
              [](const auto& a, const auto& b) { return a.size() < b.size(); });
    for (const std::string& path : roots)
        if (Failure f = add(trees, path, false, read_only))
            return f;
    if (spec.network == Network::full)
        trees.resolver = read_text("/etc/resolv.conf");
    return {};
}

} // namespace penstock::sandbox
