// Segments of a plan: runs of steps that process each block of rows independently.
//
// Row-wise kernels run between kernels that mix rows (attention, gathers). If row-wise kernels ran
// one after the other over all rows of a large step, each would write its results to the outer
// caches and read its operands from there: a feed-forward block of 512 rows produces megabytes.
// Instead a thread takes one block of rows through the whole segment. Buffers that only the segment
// uses are in a slab of the thread's workspace, which fits the L2 cache. Both ways give the same
// bits, since the bits of a row do not depend on other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/recorder.h"

namespace penstock {

// The block size of large steps.
struct RowBlocks {
    int64_t rows = 0; // maximum rows of a block; 0: no blocks
    int threads = 1;  // threads that share the blocks

    // Returns the largest number of tokens for which a step runs kernel by kernel: at most one
    // block per thread.
    int64_t least() const { return rows * threads; }
};

// The division of a step's tokens into blocks of nearly equal size. The number of blocks is a
// multiple of the threads if there are enough rows, so that no thread waits for another's last
// block. Blocks start at multiples of 16, the row count of tiles and register blocks.
struct BlockCut {
    int64_t tokens = 0;
    int64_t blocks = 0;

    // Returns the first row of a block, or `tokens` for the block after the last one.
    int64_t first(int64_t block) const;
};
BlockCut cut_rows(int64_t tokens, const RowBlocks& blocks);

// Steps [first, last) of a plan: at least two.
struct Segment {
    int32_t first = 0;
    int32_t last = 0;
    size_t slab_bytes = 0; // per thread
};

struct Segments {
    static constexpr size_t shared = SIZE_MAX;

    std::vector<Segment> all; // in ascending order
    // Offset in the slab, by buffer; `shared` for a buffer that is also used outside the segment
    // and is therefore in the arena.
    std::vector<size_t> slab_offsets;

    bool in_slab(int32_t buffer) const {
        return buffer >= 0 && slab_offsets[static_cast<size_t>(buffer)] != shared;
    }
};

// Returns the segments of a recorded step. `output`: the buffer that is read after the last step.
Segments find_segments(const Recorder& recorder, int32_t output, const RowBlocks& blocks);

} // namespace penstock
