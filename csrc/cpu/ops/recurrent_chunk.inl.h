// The chunks of a step with the states that they read and write: StateRows in
// kernels/recurrent_state.py. Included by the ISA files.
#pragma once

#include "cpu/simd/half.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace recurrent {

constexpr int64_t kTile = 16; // STATE_TILE

PENSTOCK_INLINE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
PENSTOCK_INLINE int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Tensors 3 to 10 of every kernel with states, each int32: 3 query_starts [R + 1];
// 4 context_lens [R]; 5 state_source; 6 state_base; 7 state_target; 8 state_keep; 9 state_save;
// 10 state_save_after, [R] each.
struct StateChunk {
    int64_t first;       // index of the first token in the step
    int64_t start, stop; // positions of the first token and after the last one
    int64_t source, base, target, save;
    int64_t save_position; // leading tokens of the snapshot; -1: no snapshot
    int64_t end;           // leading tokens in the matrix after the chunk

    int64_t length() const { return stop - start; }
};

PENSTOCK_INLINE StateChunk chunk_of(const Arguments& call, int64_t row) {
    const auto at = [&](size_t tensor, int64_t index) -> int64_t {
        return call.tensor[tensor].row<int32_t>(0)[index];
    };
    StateChunk chunk;
    chunk.first = at(3, row);
    chunk.stop = at(4, row);
    chunk.start = chunk.stop - (at(3, row + 1) - chunk.first);
    chunk.source = at(5, row);
    chunk.base = at(6, row);
    chunk.target = at(7, row);
    chunk.save = at(9, row);
    chunk.save_position = chunk.save < 0 ? -1 : chunk.start + at(10, row);
    chunk.end = (chunk.start + at(8, row)) / kTile * kTile;
    return chunk;
}

} // namespace recurrent
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
