// Helpers for kernels with one phase that compute each row independently. Included by the ISA
// files.
#pragma once

#include "cpu/simd/half.h"
#include "cpu/sizes.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

inline int one_phase(const Arguments&) {
    return 1;
}

inline size_t no_workspace(const Arguments&) {
    return 0;
}

// Divides rows into tasks of about `kNumbers` elements each and at least one row: some microseconds
// of work, since waking a thread does not pay for less. `width`: elements per row.
template <int64_t kNumbers>
struct RowTasks {
    PENSTOCK_INLINE int64_t rows_each(int64_t width) {
        return width >= kNumbers ? 1 : kNumbers / width;
    }

    PENSTOCK_INLINE int64_t count(int64_t rows, int64_t width) {
        return ceil_div(rows, rows_each(width));
    }

    template <class Function>
    PENSTOCK_INLINE void each(int64_t task, int64_t rows, int64_t width, const Function& f) {
        const int64_t begin = task * rows_each(width), end = begin + rows_each(width);
        for (int64_t row = begin; row < end && row < rows; ++row)
            f(row);
    }
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
