#include "sandbox/directory.h"

#include "sandbox/system.h"

namespace penstock::sandbox {
namespace {

// The kernel's struct linux_dirent64.
struct Entry {
    uint64_t inode;
    int64_t offset;
    unsigned short size;
    unsigned char type;
    char name[];
};

} // namespace

bool each_name(int folder, const std::function<bool(const char*)>& visit) {
    alignas(Entry) char buffer[4096];
    lseek(folder, 0, SEEK_SET);
    for (;;) {
        const long size = syscall(SYS_getdents64, folder, buffer, sizeof buffer);
        if (size <= 0)
            return size == 0;
        for (long at = 0; at < size;) {
            const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
            at += entry->size;
            if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
                continue;
            if (!visit(entry->name))
                return false;
        }
    }
}

std::vector<std::string> names_in(int folder) {
    std::vector<std::string> names;
    each_name(folder, [&names](const char* name) {
        names.emplace_back(name);
        return true;
    });
    return names;
}

} // namespace penstock::sandbox
