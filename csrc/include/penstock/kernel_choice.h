// The kernels that may serve one call, by number of rows. All kernels give the same bits, so that
// the choice affects only speed.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "penstock/kernel.h"

namespace penstock {

class KernelChoice {
  public:
    static constexpr size_t max_ranges = 8;
    static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

    KernelChoice() = default;
    // Uses one kernel for any number of rows.
    KernelChoice(const Kernel& kernel) { add(unlimited, kernel); } // NOLINT(google-explicit-*)

    // Adds the kernel for calls of at most `max_rows` rows. Ranges must be added in ascending
    // order.
    void add(int64_t max_rows, const Kernel& kernel) {
        assert(count_ < max_ranges && (count_ == 0 || max_rows > ranges_[count_ - 1].max_rows));
        ranges_[count_++] = {max_rows, &kernel};
    }

    // Returns the kernel for a call of `rows` rows. The last range must be unlimited.
    const Kernel& of(int64_t rows) const {
        size_t i = 0;
        while (rows > ranges_[i].max_rows)
            ++i;
        return *ranges_[i].kernel;
    }

    // Returns the kernel for a call, whose number of rows is dimension 0 of its first tensor.
    const Kernel& of(const Arguments& call) const { return of(call.tensor[0].shape[0]); }

    const Kernel& widest() const { return *ranges_[count_ - 1].kernel; }
    const char* name() const { return widest().name; }
    bool row_wise() const { return widest().row_wise; }

    // Returns the bytes of workspace per thread, for calls with at most the rows of `call`.
    size_t workspace_bytes(const Arguments& call) const {
        size_t most = 0;
        for (size_t i = 0; i < count_; ++i) {
            const size_t bytes = ranges_[i].kernel->workspace_bytes(call);
            most = bytes > most ? bytes : most;
        }
        return most;
    }

  private:
    struct Range {
        int64_t max_rows = 0;
        const Kernel* kernel = nullptr;
    };
    std::array<Range, max_ranges> ranges_{};
    size_t count_ = 0;
};

} // namespace penstock
