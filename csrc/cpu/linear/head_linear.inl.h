// Products of each head with a matrix of its own (latent attention). Included by the ISA files.
//
//   head_linear   tensors:  0 x [T, H * C] float32; 1 out [T, H * N] float32
//                 integers: threads, as for linear_dense
//   latent_query  tensors:  0 q [T, H * (C + S)] float32, for each head C plain elements, then S to
//                           rotate; 1 rope [positions, S] float32; 2 positions [T] int32;
//                           3 out [T, H * (N + S)] float32: products, then rotated elements
//                 integers: threads, H, N, S
//   object        LinearWeights of H dense parts [N, C], packed for this ISA
//
// The arithmetic of a product is that of linear_dense. The tasks of latent_query are those of the
// products, then those of the rotation.
#pragma once

#include "cpu/linear/linear_dense.inl.h"
#include "cpu/ops/rope.inl.h"
#include "cpu/row_tasks.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace heads {

// Multiplies the heads that a task of linear_dense computes. A head has `skipped` more columns in x
// and in `out` than its matrix.
PENSTOCK_INLINE void multiply(const Arguments& call, int64_t index, int64_t skipped,
                              const TensorView& x, const TensorView& out, Workspace& workspace) {
    const LinearPartition cut = LinearPartition::make(call, false);
    const LinearTask task = LinearPartition::task(cut, index);
    const int64_t head = task.part - cut.linear->parts;
    TensorView from = x, to = out;
    from.data = x.row<float>(0) + head * (cut.linear->depth + skipped);
    // The columns of a part start after those of the matrices before it.
    to.data = out.row<float>(0) + head * skipped;
    multiply_dense(*cut.linear, task, from, TensorView{}, to, workspace);
}

int64_t product_tasks(const Arguments& call, int) {
    return LinearPartition::tasks(LinearPartition::make(call, false));
}

void run_products(const Arguments& call, int, int64_t index, Workspace& workspace) {
    multiply(call, index, 0, call.tensor[0], call.tensor[1], workspace);
}

using Tokens = RowTasks<4096>;

int64_t query_tasks(const Arguments& call, int) {
    const int64_t rotated = call.integer[1] * call.integer[3];
    return product_tasks(call, 0) + Tokens::count(call.tensor[0].shape[0], rotated);
}

void run_query(const Arguments& call, int, int64_t index, Workspace& workspace) {
    const TensorView &q = call.tensor[0], &out = call.tensor[3];
    const int64_t count = call.integer[1], latent = call.integer[2], rotated = call.integer[3];
    const int64_t products = product_tasks(call, 0);
    if (index < products)
        return multiply(call, index, rotated, q, out, workspace);
    const int64_t plain = static_cast<const LinearWeights*>(call.object)->depth;
    Tokens::each(index - products, q.shape[0], count * rotated, [&](int64_t token) {
        const int32_t position = call.tensor[2].row<int32_t>(0)[token];
        const float* cosine = call.tensor[1].row<float>(position);
        const float* from = q.row<float>(token) + plain;
        float* to = out.row<float>(token) + latent;
        for (int64_t h = 0; h < count; ++h, from += plain + rotated, to += latent + rotated)
            rope::rotate(from, cosine, rotated, rotated, to);
    });
}

} // namespace heads

constexpr Kernel kHeadKernels[] = {
    {"head_linear", one_phase, heads::product_tasks, heads::run_products,
     linear_dense_workspace_bytes, true},
    {"latent_query", one_phase, heads::query_tasks, heads::run_query, linear_dense_workspace_bytes,
     true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
