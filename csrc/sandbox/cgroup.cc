#include "sandbox/cgroup.h"

#include <sys/stat.h>
#include <sys/xattr.h>

#include "sandbox/text_file.h"

namespace penstock::sandbox {
namespace {

// The init, the supervisors, and a reserve for programs that end while others start.
constexpr uint32_t kSpareProcesses = 16;

// Returns the folder of the cgroup2 hierarchy, or an empty text.
std::string mount_point() {
    const std::string mounts = read_text("/proc/self/mounts");
    for (size_t begin = 0; begin < mounts.size();) {
        const size_t end = std::min(mounts.find('\n', begin), mounts.size());
        const std::string line = mounts.substr(begin, end - begin);
        begin = end + 1;
        const size_t first = line.find(' '), second = line.find(' ', first + 1);
        if (second != line.npos && line.compare(second + 1, 8, "cgroup2 ") == 0)
            return line.substr(first + 1, second - first - 1);
    }
    return "";
}

// Returns the path of this process's cgroup below the hierarchy.
std::string own_path() {
    const std::string groups = "\n" + read_text("/proc/self/cgroup");
    const size_t begin = groups.find("\n0::");
    if (begin == groups.npos)
        return "";
    const size_t start = begin + 4;
    const std::string path = groups.substr(start, groups.find('\n', start) - start);
    return path == "/" ? "" : path;
}

// True if the service manager leaves the cgroups below this one to the server.
bool is_delegated(const std::string& path) {
    char value = 0;
    return (getxattr(path.c_str(), "user.delegate", &value, 1) == 1 ||
            getxattr(path.c_str(), "trusted.delegate", &value, 1) == 1) &&
           value == '1';
}

bool make_below(const std::string& parent, const Spec& spec, std::string& path) {
    path = parent + "/" + spec.cgroup;
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
        return false;
    if (access((path + "/memory.max").c_str(), W_OK) != 0)
        write_text(parent + "/cgroup.subtree_control", "+memory +pids");
    const bool limited =
        write_text(path + "/memory.max", std::to_string(spec.memory_bytes)) &&
        write_text(path + "/pids.max", std::to_string(spec.max_processes + kSpareProcesses));
    // Missing without swap accounting.
    write_text(path + "/memory.swap.max", "0");
    if (!limited)
        rmdir(path.c_str());
    return limited;
}

} // namespace

Failure make_cgroup(const Spec& spec, std::string& path) {
    const std::string root = mount_point();
    if (root.empty())
        return {"cgroup", "no cgroup2 hierarchy is mounted"};
    const std::string own = own_path();
    // A service manager that delegates puts the server into a leaf below the delegated cgroup.
    if (make_below(root + own, spec, path))
        return {};
    const std::string parent = root + own.substr(0, own.rfind('/'));
    if (!own.empty() && is_delegated(parent) && make_below(parent, spec, path))
        return {};
    path.clear();
    return {"cgroup", "no cgroup with the memory and pids controllers is delegated to the server"};
}

bool enter_cgroup(const std::string& path, pid_t pid) {
    return write_text(path + "/cgroup.procs", std::to_string(pid));
}

void remove_cgroup(const std::string& path) {
    write_text(path + "/cgroup.kill", "1");
    // Killed processes leave the cgroup a little later.
    for (int attempt = 0; attempt < 50 && rmdir(path.c_str()) != 0 && errno == EBUSY; ++attempt)
        usleep(2000);
}

} // namespace penstock::sandbox
