#include "sandbox/files.h"

#include <algorithm>
#include <sys/stat.h>

#include "sandbox/directory.h"

namespace penstock::sandbox {
namespace {

constexpr uint64_t kResolve = sys::kResolveBeneath | sys::kResolveNoSymlinks |
                              sys::kResolveNoMagiclinks | sys::kResolveNoXdev;
constexpr int kMaxDepth = 32;
constexpr uint32_t kMaxVisited = 200'000;
// Keeps the memory of init small, whatever names programs choose.
constexpr size_t kMaxPathBytes = 4 << 20;

int open_folder(int parent, const char* name) {
    return sys::openat2(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, kResolve);
}

} // namespace

OpenedFile open_for_reading(int folder, const std::string& path, uint64_t max_bytes,
                            bool single_link) {
    // O_NONBLOCK: opening a FIFO must not wait for its writer.
    Descriptor file(sys::openat2(folder, path.c_str(),
                                 O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0,
                                 kResolve));
    if (!file) {
        switch (errno) {
        case ENOENT:
        case ENOTDIR: return {Descriptor(), 0, "not_produced", "The file does not exist."};
        case ELOOP:
        case EXDEV:
            return {Descriptor(), 0, "not_a_regular_file",
                    "The path leads through a link or out of the working directory."};
        case ENXIO:
        case ENODEV:
            return {Descriptor(), 0, "not_a_regular_file", "The path is not a regular file."};
        default: return {Descriptor(), 0, "unreadable", strerror(errno)};
        }
    }
    struct stat status;
    if (fstat(file.get(), &status) != 0)
        return {Descriptor(), 0, "unreadable", strerror(errno)};
    if (!S_ISREG(status.st_mode) || (single_link && status.st_nlink > 1))
        return {Descriptor(), 0, "not_a_regular_file", "The path is not a regular file."};
    const auto size = static_cast<uint64_t>(status.st_size);
    if (size > max_bytes)
        return {Descriptor(), size, "too_large", "The file is larger than the limit."};
    return {std::move(file), size, "", ""};
}

FileWriter::FileWriter(int folder, const std::string& path, unsigned mode)
    : parent_(fcntl(folder, F_DUPFD_CLOEXEC, 0)), mode_(mode) {
    size_t begin = 0;
    for (size_t end = path.find('/'); end != path.npos; end = path.find('/', begin)) {
        const std::string part = path.substr(begin, end - begin);
        if (mkdirat(parent_.get(), part.c_str(), 0755) != 0 && errno != EEXIST) {
            fail("create a folder");
            return;
        }
        Descriptor next(open_folder(parent_.get(), part.c_str()));
        if (!next) {
            fail("open a folder");
            return;
        }
        parent_ = std::move(next);
        begin = end + 1;
    }
    static uint64_t count = 0;
    name_ = path.substr(begin);
    temporary_ = ".penstock-" + std::to_string(++count);
    constexpr int flags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
    unlinkat(parent_.get(), temporary_.c_str(), 0);
    file_ = Descriptor(sys::openat2(parent_.get(), temporary_.c_str(), flags, 0600, kResolve));
    if (!file_)
        fail("create the file");
}

FileWriter::~FileWriter() {
    if (file_)
        unlinkat(parent_.get(), temporary_.c_str(), 0);
}

void FileWriter::fail(const char* step) {
    if (error_.empty())
        error_ = std::string("cannot ") + step + ": " + strerror(errno);
}

void FileWriter::write(std::string_view bytes) {
    while (error_.empty() && !bytes.empty()) {
        const ssize_t size = ::write(file_.get(), bytes.data(), bytes.size());
        if (size < 0 && errno != EINTR)
            fail("write the file");
        bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    }
}

void FileWriter::finish() {
    if (!error_.empty())
        return;
    if (fchmod(file_.get(), mode_) != 0 ||
        renameat(parent_.get(), temporary_.c_str(), parent_.get(), name_.c_str()) != 0)
        return fail("put the file in place");
    file_ = Descriptor();
}

namespace {

class Walk {
  public:
    Walk(const Spec& spec, uint32_t max_files, const std::function<void(const Entry&)>& found)
        : spec_(spec), max_files_(max_files), found_(found) {}

    // Returns false at a limit.
    bool folder(int fd, const std::string& prefix, int depth) {
        if (depth > kMaxDepth)
            return false;
        std::vector<std::string> folders;
        const bool complete = each_name(fd, [&](const char* name) {
            return ++visited_ <= kMaxVisited && visit(fd, prefix, name, folders);
        });
        if (!complete)
            return false;
        for (const std::string& name : folders) {
            const Descriptor next(open_folder(fd, name.c_str()));
            if (next && !folder(next.get(), prefix + name + "/", depth + 1))
                return false;
        }
        return true;
    }

  private:
    bool visit(int fd, const std::string& prefix, const char* name,
               std::vector<std::string>& folders) {
        struct stat status;
        if (name[0] == '.' || fstatat(fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            return true;
        if (S_ISDIR(status.st_mode)) {
            if (!contains(spec_.skipped_folders, name))
                folders.emplace_back(name);
            return true;
        }
        const char* dot = strrchr(name, '.');
        if (!S_ISREG(status.st_mode) || (dot && contains(spec_.skipped_suffixes, dot + 1)))
            return true;
        path_bytes_ += prefix.size() + strlen(name);
        if (++files_ > max_files_ || path_bytes_ > kMaxPathBytes)
            return false;
        found_({prefix + name, static_cast<uint64_t>(status.st_size),
                static_cast<uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                    static_cast<uint64_t>(status.st_mtim.tv_nsec),
                status.st_ino});
        return true;
    }

    static bool contains(const std::vector<std::string>& names, std::string_view name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    }

    const Spec& spec_;
    const uint32_t max_files_;
    const std::function<void(const Entry&)>& found_;
    uint32_t visited_ = 0;
    uint32_t files_ = 0;
    size_t path_bytes_ = 0;
};

} // namespace

bool list_regular_files(int folder, const Spec& spec, uint32_t max_files,
                        const std::function<void(const Entry&)>& found) {
    const Descriptor root(open_folder(folder, "."));
    return root && Walk(spec, max_files, found).folder(root.get(), "", 0);
}

} // namespace penstock::sandbox
