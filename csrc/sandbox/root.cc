#include "sandbox/root.h"

#include <algorithm>
#include <grp.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "sandbox/host_trees.h"

namespace penstock::sandbox {
namespace {

constexpr uint64_t kTmpfsInodes = 131072;
constexpr const char* kHiddenProc[] = {
    "proc/acpi",          "proc/asound",      "proc/bus",           "proc/cmdline",
    "proc/config.gz",     "proc/driver",      "proc/dynamic_debug", "proc/fs",
    "proc/interrupts",    "proc/iomem",       "proc/ioports",       "proc/irq",
    "proc/kallsyms",      "proc/kcore",       "proc/key-users",     "proc/keys",
    "proc/kmsg",          "proc/kpagecgroup", "proc/kpagecount",    "proc/kpageflags",
    "proc/latency_stats", "proc/modules",     "proc/pagetypeinfo",  "proc/sched_debug",
    "proc/scsi",          "proc/slabinfo",    "proc/sysrq-trigger", "proc/timer_list",
    "proc/tty",           "proc/vmallocinfo",
};

Failure failed(const std::string& step) {
    return failure("namespaces", step);
}

Failure become_inner_user(bool has_groups) {
    if (has_groups && setgroups(0, nullptr) != 0)
        return failed("setgroups");
    if (setresgid(kInnerId, kInnerId, kInnerId) != 0 ||
        setresuid(kInnerId, kInnerId, kInnerId) != 0)
        return failed("setresuid");
    return {};
}

Failure mount_tmpfs(const Spec& spec) {
    const Descriptor context(static_cast<int>(syscall(sys::kFsOpen, "tmpfs", 1)));
    if (!context)
        return failed("fsopen tmpfs");
    const uint64_t inodes = std::clamp<uint64_t>(spec.memory_bytes / 16384, 16384, kTmpfsInodes);
    const std::pair<const char*, std::string> options[] = {
        {"size", std::to_string(spec.memory_bytes)},
        {"nr_inodes", std::to_string(inodes)},
        {"mode", "0755"},
    };
    for (const auto& [key, value] : options)
        if (syscall(sys::kFsConfig, context.get(), sys::kFsSetString, key, value.c_str(), 0) != 0)
            return failed(std::string("tmpfs ") + key);
    if (syscall(sys::kFsConfig, context.get(), sys::kFsCreate, nullptr, nullptr, 0) != 0)
        return failed("create tmpfs");
    const Descriptor mount(static_cast<int>(
        syscall(sys::kFsMount, context.get(), 1, sys::kMountNoSuid | sys::kMountNoDev)));
    if (!mount)
        return failed("fsmount tmpfs");
    if (syscall(sys::kMoveMount, mount.get(), "", AT_FDCWD, "/tmp", sys::kMoveFromEmpty) != 0)
        return failed("move_mount tmpfs");
    if (chdir("/tmp") != 0)
        return failed("chdir");
    return {};
}

// Makes the folders above `path` (and `path` itself for a folder), relative to the new root.
bool make_place(const std::string& path, bool folder) {
    for (size_t end = path.find('/'); end != path.npos; end = path.find('/', end + 1))
        if (mkdir(path.substr(0, end).c_str(), 0755) != 0 && errno != EEXIST)
            return false;
    if (folder)
        return mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
    const Descriptor file(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0444));
    return static_cast<bool>(file) || errno == EEXIST;
}

bool attach(int tree, const std::string& target) {
    return syscall(sys::kMoveMount, tree, "", AT_FDCWD, target.c_str(), sys::kMoveFromEmpty) == 0;
}

// Mounts `source` of the new root at `target`, with its own attributes.
Failure rebind(const std::string& source, const std::string& target, uint64_t attributes) {
    const Descriptor tree(sys::open_tree(AT_FDCWD, source.c_str(), sys::kOpenTreeClone));
    if (!tree || sys::mount_setattr(tree.get(), 0, attributes) != 0 || !attach(tree.get(), target))
        return failed("bind " + target);
    return {};
}

Failure make_writable_places(const Spec& spec, Descriptor& host_folder) {
    constexpr uint64_t writable = sys::kMountNoSuid | sys::kMountNoDev;
    for (const char* path : {"mnt/data", "mnt/skills", "tmp", "dev/shm", "var/empty"})
        if (!make_place(path, true))
            return failed(std::string("mkdir ") + path);
    if (spec.host_workdir.empty()) {
        if (Failure f = rebind("mnt/data", "mnt/data", writable))
            return f;
    } else if (!attach(host_folder.get(), "mnt/data")) {
        return failed("bind " + spec.host_workdir);
    }
    if (mkdir("mnt/data/skills", 0755) != 0 && errno != EEXIST)
        return failed("mkdir skills");
    if (Failure f = rebind("tmp", "tmp", writable))
        return f;
    return rebind("dev/shm", "dev/shm", writable | sys::kMountNoExec);
}

Failure attach_trees(const HostTrees& trees) {
    for (const Link& link : trees.links) {
        const std::string path = link.path.substr(1);
        if (const size_t end = path.rfind('/'); end != path.npos)
            make_place(path.substr(0, end), true);
        if (symlink(link.target.c_str(), path.c_str()) != 0)
            return failed("symlink " + path);
    }
    for (const Bind& bind : trees.binds) {
        const std::string path = bind.target.substr(1);
        if (!make_place(path, bind.folder) || !attach(bind.tree.get(), path))
            return failed("bind " + bind.target);
    }
    return {};
}

bool write_file(const std::string& path, const std::string& text) {
    const Descriptor file(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444));
    return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

Failure write_etc(const Spec& spec, const std::string& resolver) {
    make_place("etc", true);
    const std::pair<const char*, std::string> files[] = {
        {"etc/passwd", "user:x:1000:1000:user:/mnt/data:/bin/sh\n"
                       "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"},
        {"etc/group", "user:x:1000:\nnogroup:x:65534:\n"},
        {"etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"},
        {"etc/hostname", "sandbox\n"},
        {"etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"},
    };
    for (const auto& [path, text] : files)
        if (!write_file(path, text))
            return failed(std::string("write ") + path);
    if (spec.network == Network::full && !write_file("etc/resolv.conf", resolver))
        return failed("write etc/resolv.conf");
    return {};
}

Failure mount_proc() {
    make_place("proc", true);
    if (mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        return failed("mount proc");
    constexpr uint64_t read_only =
        sys::kMountReadOnly | sys::kMountNoSuid | sys::kMountNoDev | sys::kMountNoExec;
    for (const char* path : kHiddenProc) {
        struct stat status;
        if (lstat(path, &status) != 0)
            continue;
        const bool folder = S_ISDIR(status.st_mode);
        const Descriptor tree(
            sys::open_tree(AT_FDCWD, folder ? "var/empty" : "dev/null", sys::kOpenTreeClone));
        if (!tree || sys::mount_setattr(tree.get(), 0, read_only) != 0 || !attach(tree.get(), path))
            return failed(std::string("hide ") + path);
    }
    return rebind("proc/sys", "proc/sys", read_only);
}

Failure finish_dev() {
    for (const auto& [path, target] : {std::pair{"dev/fd", "/proc/self/fd"},
                                       {"dev/stdin", "/proc/self/fd/0"},
                                       {"dev/stdout", "/proc/self/fd/1"},
                                       {"dev/stderr", "/proc/self/fd/2"}})
        if (symlink(target, path) != 0)
            return failed(std::string("symlink ") + path);
    return {};
}

Failure mount_skills(Places& places) {
    // A detached, writable mount of the same folder: programs cannot name it.
    places.skills_folder = sys::open_tree(AT_FDCWD, "mnt/skills", sys::kOpenTreeClone);
    if (places.skills_folder < 0)
        return failed("open_tree mnt/skills");
    return rebind("mnt/skills", "mnt/data/skills",
                  sys::kMountReadOnly | sys::kMountNoSuid | sys::kMountNoDev);
}

Failure pivot() {
    const Descriptor root(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (sys::mount_setattr(root.get(), 0, sys::kMountReadOnly) != 0)
        return failed("mount_setattr /");
    if (syscall(SYS_pivot_root, ".", ".") != 0)
        return failed("pivot_root");
    if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        return failed("unmount the host's root");
    return {};
}

} // namespace

Failure enter_private_root(const Spec& spec, bool has_groups, Places& places) {
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        return failed("make mounts private");
    HostTrees trees;
    if (Failure f = collect_host_trees(spec, trees))
        return f;
    Descriptor host_folder;
    if (!spec.host_workdir.empty()) {
        host_folder = Descriptor(sys::open_tree(AT_FDCWD, spec.host_workdir.c_str(),
                                                sys::kOpenTreeClone | sys::kRecursive));
        if (!host_folder || sys::mount_setattr(host_folder.get(), sys::kRecursive,
                                               sys::kMountNoSuid | sys::kMountNoDev) != 0)
            return failed("open_tree " + spec.host_workdir);
    }
    if (Failure f = become_inner_user(has_groups))
        return f;
    umask(022);
    Failure f = mount_tmpfs(spec);
    if (!f)
        f = make_writable_places(spec, host_folder);
    if (!f)
        f = attach_trees(trees);
    if (!f)
        f = write_etc(spec, trees.resolver);
    if (!f)
        f = finish_dev();
    if (!f)
        f = mount_proc();
    if (!f)
        f = mount_skills(places);
    if (!f)
        f = pivot();
    if (f)
        return f;
    if (sethostname("sandbox", 7) != 0)
        return failed("sethostname");
    places.work = "/mnt/data";
    places.temporary = "/tmp";
    places.readable = {"/"};
    places.writable = {"/mnt/data", "/tmp", "/dev/shm"};
    places.work_folder = open("/mnt/data", O_PATH | O_DIRECTORY | O_CLOEXEC);
    places.proc_folder = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (places.work_folder < 0 || places.proc_folder < 0)
        return failed("open /mnt/data and /proc");
    return {};
}

} // namespace penstock::sandbox
