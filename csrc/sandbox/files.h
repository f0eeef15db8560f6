// File access for the server, done inside the container: below one folder, through no link.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "sandbox/spec.h"
#include "sandbox/system.h"

namespace penstock::sandbox {

// A regular file that is open for reading, or the reason why not.
struct OpenedFile {
    Descriptor file;
    uint64_t size = 0;
    std::string code;
    std::string message;
};

// Codes: not_produced, not_a_regular_file, too_large, unreadable. `single_link`: refuse a file with
// other hard links.
OpenedFile open_for_reading(int folder, const std::string& path, uint64_t max_bytes,
                            bool single_link);

// A file that is written under a temporary name and takes its place in finish().
class FileWriter {
  public:
    // Makes the folders above the file. On failure, `error` says why.
    FileWriter(int folder, const std::string& path, unsigned mode);
    ~FileWriter();
    FileWriter(FileWriter&&) = default;

    void write(std::string_view bytes);
    void finish();
    const std::string& error() const { return error_; }

  private:
    void fail(const char* step);

    Descriptor parent_;
    Descriptor file_;
    std::string name_;
    std::string temporary_;
    unsigned mode_;
    std::string error_;
};

struct Entry {
    std::string path;
    uint64_t size;
    uint64_t mtime_ns;
    uint64_t inode;
};

// Calls `found` for each regular file below `folder` that the spec does not skip. Returns false if
// it stopped at a limit: of files, of visited entries, or of depth.
bool list_regular_files(int folder, const Spec& spec, uint32_t max_files,
                        const std::function<void(const Entry&)>& found);

} // namespace penstock::sandbox
