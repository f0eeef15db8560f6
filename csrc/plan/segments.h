// Segments of a plan: runs of steps that a block of rows can go through on its own.
//
// Between two kernels that mix rows (attention, a gather) lie kernels that do not. Run one after
// the other over all rows of a large step, each leaves its results in the outer caches and reads
// its operands from there: a feed-forward block of 512 rows makes megabytes. So a thread takes a
// block of rows through the whole segment; what only the segment uses lies in a slab of the
// thread's workspace, small enough for its second cache level. A row's bits do not depend on the
// rows beside it, so both ways give the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/recorder.h"

namespace penstock {

// How large steps are cut. With `rows` 0 they are not.
struct RowBlocks {
    int64_t rows = 0; // of a block at most
    int threads = 1;  // that share the blocks

    // Steps of at most this many tokens run kernel by kernel: there is no block for every thread.
    int64_t least() const { return rows * threads; }
};

// Blocks of nearly equal size, a multiple of the threads where there are rows enough, so that no
// thread waits for another's last block. They begin at multiples of 16, which tiles and registers
// divide.
struct BlockCut {
    int64_t tokens = 0;
    int64_t blocks = 0;

    // The first row of a block; of the block after the last one, `tokens`.
    int64_t first(int64_t block) const;
};
BlockCut cut_rows(int64_t tokens, const RowBlocks& blocks);

// Steps [first, last) of a plan, at least two.
struct Segment {
    int32_t first = 0;
    int32_t last = 0;
    size_t slab_bytes = 0; // of one thread
};

struct Segments {
    static constexpr size_t shared = SIZE_MAX;

    std::vector<Segment> all;         // ascending
    std::vector<size_t> slab_offsets; // by buffer; `shared`: used elsewhere too, so in the arena

    bool in_slab(int32_t buffer) const {
        return buffer >= 0 && slab_offsets[static_cast<size_t>(buffer)] != shared;
    }
};

// `output`: the buffer that is read after the last step.
Segments find_segments(const Recorder& recorder, int32_t output, const RowBlocks& blocks);

} // namespace penstock
