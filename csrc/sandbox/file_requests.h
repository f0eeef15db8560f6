// The server's requests for files of a container.
#pragma once

#include <deque>
#include <map>

#include "sandbox/files.h"
#include "sandbox/outbox.h"
#include "sandbox/root.h"
#include "sandbox/spec.h"
#include "sandbox/wire.h"

namespace penstock::sandbox {

class FileRequests {
  public:
    // `single_link`: refuse to read files that have other hard links.
    FileRequests(const Spec& spec, const Places& places, bool single_link, Outbox& outbox)
        : spec_(spec), places_(places), single_link_(single_link), outbox_(outbox) {}

    // Each returns false if the request is malformed.
    bool write_begin(uint32_t request, Reader payload);
    bool write_data(uint32_t request, Reader payload);
    bool write_end(uint32_t request, Reader payload);
    bool write_abort(uint32_t request, Reader payload);
    bool read(uint32_t request, Reader payload);
    bool list(uint32_t request, Reader payload);

    bool has_transfers() const { return !transfers_.empty(); }
    void continue_transfers();

  private:
    // A file that is being sent.
    struct Transfer {
        uint32_t request;
        Descriptor file;
        uint64_t rest;
    };

    const Spec& spec_;
    const Places& places_;
    const bool single_link_;
    Outbox& outbox_;
    std::map<uint32_t, FileWriter> writers_;
    std::deque<Transfer> transfers_;
};

} // namespace penstock::sandbox
