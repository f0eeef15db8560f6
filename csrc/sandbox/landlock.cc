#include "sandbox/landlock.h"

#include <sys/stat.h>

#include "sandbox/system.h"

namespace penstock::sandbox {
namespace {

struct RulesetAttr {
    uint64_t files, network, scopes;
};
struct __attribute__((packed)) PathRule {
    uint64_t allowed;
    int32_t folder;
};
constexpr int kPathRule = 1;

constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadDir = 1 << 3;
constexpr uint64_t kTruncate = 1 << 14;
constexpr uint64_t kVersion1 = (1 << 13) - 1, kVersion2 = (1 << 14) - 1, kVersion3 = (1 << 15) - 1;
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate;
constexpr uint64_t kAbstractSockets = 1, kSignals = 2;

bool allow(int ruleset, const std::string& path, uint64_t access) {
    const Descriptor target(open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!target)
        return errno == ENOENT;
    struct stat status;
    if (fstat(target.get(), &status) != 0)
        return false;
    if (!S_ISDIR(status.st_mode))
        access &= kOfFiles;
    const PathRule rule{access, target.get()};
    return syscall(sys::kLandlockAdd, ruleset, kPathRule, &rule, 0) == 0;
}

} // namespace

int landlock_abi() {
    const long abi = syscall(sys::kLandlockCreate, nullptr, 0, 1);
    return abi > 0 ? static_cast<int>(abi) : 0;
}

bool restrict_files(int abi, const Places& places) {
    const uint64_t all = abi >= 3 ? kVersion3 : abi == 2 ? kVersion2 : kVersion1;
    const RulesetAttr attributes{all, 0, abi >= kScopesAbi ? kAbstractSockets | kSignals : 0};
    const size_t size = abi >= kScopesAbi ? sizeof attributes : sizeof attributes.files;
    const Descriptor ruleset(static_cast<int>(syscall(sys::kLandlockCreate, &attributes, size, 0)));
    if (!ruleset)
        return false;
    for (const std::string& path : places.readable)
        if (!allow(ruleset.get(), path, kExecute | kReadFile | kReadDir))
            return false;
    for (const std::string& path : places.writable)
        if (!allow(ruleset.get(), path, all))
            return false;
    for (const char* device : {"/dev/null", "/dev/zero", "/dev/full"})
        if (!allow(ruleset.get(), device, kReadFile | kWriteFile | (all & kTruncate)))
            return false;
    return syscall(sys::kLandlockRestrict, ruleset.get(), 0) == 0;
}

} // namespace penstock::sandbox
