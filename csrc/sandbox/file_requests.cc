#include "sandbox/file_requests.h"

#include <algorithm>

namespace penstock::sandbox {
namespace {

constexpr uint32_t kInSkills = 1;
constexpr size_t kMaxTransfers = 64;

} // namespace

bool FileRequests::write_begin(uint32_t request, Reader payload) {
    const uint32_t flags = payload.u32(), mode = payload.u32();
    const std::string path(payload.text());
    if (!payload.finished() || !is_normal_relative_path(path) || mode > 0777 ||
        writers_.size() >= kMaxTransfers || writers_.contains(request))
        return false;
    const int folder = flags & kInSkills ? places_.skills_folder : places_.work_folder;
    writers_.emplace(request, FileWriter(folder, path, mode));
    return true;
}

bool FileRequests::write_data(uint32_t request, Reader payload) {
    const auto writer = writers_.find(request);
    if (writer == writers_.end())
        return false;
    writer->second.write(payload.rest());
    return true;
}

bool FileRequests::write_end(uint32_t request, Reader payload) {
    const auto writer = writers_.find(request);
    if (writer == writers_.end() || !payload.finished())
        return false;
    writer->second.finish();
    const std::string error = writer->second.error();
    writers_.erase(writer);
    if (error.empty())
        outbox_.add(Kind::done, request, Writer());
    else
        outbox_.add_error(request, "unwritable", error);
    return true;
}

bool FileRequests::write_abort(uint32_t request, Reader payload) {
    writers_.erase(request);
    return payload.finished();
}

bool FileRequests::read(uint32_t request, Reader payload) {
    const uint64_t max_bytes = payload.u64();
    const std::string path(payload.text());
    if (!payload.finished() || transfers_.size() >= kMaxTransfers)
        return false;
    if (!is_normal_relative_path(path)) {
        outbox_.add_error(request, "not_a_regular_file",
                          "The path is not inside the working directory.");
        return true;
    }
    OpenedFile opened = open_for_reading(places_.work_folder, path, max_bytes, single_link_);
    if (!opened.file) {
        outbox_.add_error(request, opened.code, opened.message);
        return true;
    }
    outbox_.add(Kind::file_size, request, Writer().u64(opened.size));
    transfers_.push_back({request, std::move(opened.file), opened.size});
    return true;
}

bool FileRequests::list(uint32_t request, Reader payload) {
    const uint32_t max_files = payload.u32();
    if (!payload.finished())
        return false;
    Writer batch;
    const bool complete =
        list_regular_files(places_.work_folder, spec_, max_files, [&](const Entry& entry) {
            if (batch.bytes().size() + entry.path.size() + 32 > kMaxPayload) {
                outbox_.add(Kind::entries, request, batch);
                batch = Writer();
            }
            batch.text(entry.path).u64(entry.size).u64(entry.mtime_ns).u64(entry.inode);
        });
    outbox_.add(Kind::entries, request, batch);
    outbox_.add(Kind::listed, request, Writer().u32(complete ? 0 : 1));
    return true;
}

// Sends one piece of each file, if all earlier frames are sent.
void FileRequests::continue_transfers() {
    for (size_t count = transfers_.size(); count > 0 && outbox_.empty(); --count) {
        Transfer transfer = std::move(transfers_.front());
        transfers_.pop_front();
        static char buffer[kMaxPayload];
        const size_t wanted = std::min<uint64_t>(transfer.rest, sizeof buffer);
        ssize_t size = wanted ? ::read(transfer.file.get(), buffer, wanted) : 0;
        if (size < 0) {
            outbox_.add_error(transfer.request, "unreadable", strerror(errno));
        } else if (size > 0) {
            transfer.rest -= static_cast<uint64_t>(size);
            outbox_.add(Kind::file_data, transfer.request,
                        std::string_view(buffer, static_cast<size_t>(size)));
            transfers_.push_back(std::move(transfer));
        } else {
            outbox_.add(Kind::done, transfer.request, Writer());
        }
        if (!outbox_.flush())
            return;
    }
}

} // namespace penstock::sandbox
