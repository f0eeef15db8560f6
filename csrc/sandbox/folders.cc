#include "sandbox/folders.h"

#include <cstdlib>
#include <functional>
#include <sys/stat.h>

#include "sandbox/directory.h"

namespace penstock::sandbox {
namespace {

constexpr int kMaxDepth = 256;

// Calls `leave` for each entry below the folder, for a folder after all in it.
void walk(int folder, int depth, const std::function<void(int, const char*, bool)>& leave) {
    if (depth > kMaxDepth)
        return;
    for (const std::string& name : names_in(folder)) {
        const Descriptor next(
            openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (next)
            walk(next.get(), depth + 1, leave);
        leave(folder, name.c_str(), static_cast<bool>(next));
    }
}

bool make_owned(const std::string& path, uint32_t owner) {
    return mkdir(path.c_str(), 0700) == 0 && (owner == 0 || chown(path.c_str(), owner, owner) == 0);
}

} // namespace

Failure make_folders(const Spec& spec, uint32_t owner, Places& places) {
    // The name tells an operator which server made the folder.
    std::string base = "/tmp/penstock-sandbox-" + std::to_string(getppid()) + "-XXXXXX";
    if (!mkdtemp(base.data()))
        return failure("folders", base);
    places.base = base;
    if (owner != 0 && chown(base.c_str(), owner, owner) != 0)
        return failure("folders", "chown");
    places.work = spec.host_workdir.empty() ? places.base + "/data" : spec.host_workdir;
    places.temporary = places.base + "/tmp";
    const std::string skills = places.base + "/skills";
    if (spec.host_workdir.empty() && !make_owned(places.work, owner))
        return failure("folders", "mkdir data");
    if (!make_owned(places.temporary, owner) || !make_owned(skills, owner))
        return failure("folders", "mkdir");
    if (symlink(skills.c_str(), (places.work + "/skills").c_str()) != 0 && errno != EEXIST)
        return failure("folders", "symlink skills");
    places.writable = {places.work, places.temporary};
    places.readable = {"/usr",          "/bin",          "/sbin",        "/lib",
                       "/lib64",        "/lib32",        "/etc",         "/proc/self",
                       "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",   "/proc/filesystems",
                       "/proc/sys",     "/dev/random",   "/dev/urandom", skills};
    places.readable.insert(places.readable.end(), spec.read_only.begin(), spec.read_only.end());
    return {};
}

Failure open_folders(Places& places) {
    constexpr int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    places.work_folder = open(places.work.c_str(), flags);
    places.skills_folder = open((places.base + "/skills").c_str(), flags);
    places.proc_folder = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (places.work_folder < 0 || places.skills_folder < 0 || places.proc_folder < 0)
        return failure("folders", "open");
    return {};
}

Failure prepare_host_folder(const std::string& path, uint32_t owner) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        return failure("folders", "mkdir " + path);
    const Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder)
        return failure("folders", "open " + path);
    struct stat status;
    if (owner == 0 || (fstat(folder.get(), &status) == 0 && status.st_uid == owner))
        return {};
    walk(folder.get(), 0, [owner](int parent, const char* name, bool) {
        if (fchownat(parent, name, owner, owner, AT_SYMLINK_NOFOLLOW) != 0)
            return;
    });
    if (fchown(folder.get(), owner, owner) != 0)
        return failure("folders", "chown " + path);
    return {};
}

void remove_folder(const std::string& path) {
    if (path.empty())
        return;
    const Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder)
        return;
    walk(folder.get(), 0, [](int parent, const char* name, bool is_folder) {
        unlinkat(parent, name, is_folder ? AT_REMOVEDIR : 0);
    });
    rmdir(path.c_str());
}

} // namespace penstock::sandbox
