// Places the embeddings of images, videos and recordings in the tokens of a step, and their
// positions in the rope table. Included by the ISA files.
//
//   replace_rows  tensors: x [T, W] float32, rows [M, W] float32, index [T] int32 below M or
//                          negative, out [T, W] float32: rows[index[t]], or x[t] if it is negative
//   add_rows      likewise, out[t] = x[t] + rows[index[t]], or x[t]
//   mrope_rows    tensors: table [positions, rotated] float32 (cosines, then sines); time, height,
//                          width [T] int32 each; axis [rotated / 2] int32; out [T, rotated]
//                          float32: pair i is taken from the row of the table at the time of the
//                          token if axis[i] is 0, at its height if 1, else at its width
#pragma once

#include <cstring>

#include "cpu/row_tasks.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace media {

using Tasks = RowTasks<32768>;

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[3].shape[0], call.tensor[3].shape[1]);
}

PENSTOCK_INLINE void copy_row(const float* from, int64_t width, float* to) {
    std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
}

PENSTOCK_INLINE void add_row(const float* x, const float* row, int64_t width, float* to) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int n = lanes_from(i, width);
        store_lanes(to + i, load_lanes(x + i, n) + load_lanes(row + i, n), n);
    }
}

template <bool adds>
void run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &x = call.tensor[0], &rows = call.tensor[1], &out = call.tensor[3];
    const int32_t* index = call.tensor[2].row<int32_t>(0);
    const int64_t width = out.shape[1];
    Tasks::each(task, out.shape[0], width, [&](int64_t token) {
        const float* from = x.row<float>(token);
        float* to = out.row<float>(token);
        const int32_t row = index[token];
        if (row < 0) {
            copy_row(from, width, to);
        } else if constexpr (adds) {
            add_row(from, rows.row<float>(row), width, to);
        } else {
            copy_row(rows.row<float>(row), width, to);
        }
    });
}

int64_t mrope_tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[5].shape[0], call.tensor[5].shape[1]);
}

void mrope_run(const Arguments& call, int, int64_t task, Workspace&) {
    const TensorView &table = call.tensor[0], &out = call.tensor[5];
    const int32_t* axis = call.tensor[4].row<int32_t>(0);
    const int64_t rotated = out.shape[1], pairs = rotated / 2;
    Tasks::each(task, out.shape[0], rotated, [&](int64_t token) {
        const float* const from[] = {table.row<float>(call.tensor[1].row<int32_t>(0)[token]),
                                     table.row<float>(call.tensor[2].row<int32_t>(0)[token]),
                                     table.row<float>(call.tensor[3].row<int32_t>(0)[token])};
        float* to = out.row<float>(token);
        for (int64_t i = 0; i < pairs; ++i) {
            const float* row = from[axis[i] == 0 ? 0 : axis[i] == 1 ? 1 : 2];
            to[i] = row[i];
            to[pairs + i] = row[pairs + i];
        }
    });
}

} // namespace media

constexpr Kernel kMediaKernels[] = {
    {"replace_rows", one_phase, media::tasks, media::run<false>, no_workspace, true},
    {"add_rows", one_phase, media::tasks, media::run<true>, no_workspace, true},
    {"mrope_rows", one_phase, media::mrope_tasks, media::mrope_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
