// Recurrent layers with a matrix state. Included by the ISA files.
//
//   gated_delta_rule  tensors:  0 qkv [T, 2 G N + H D]; 1 gates [T, 2 H]; 2 decay [2, H];
//                               3 to 10 the chunks (see recurrent_chunk.inl.h);
//                               11 matrix [slots, H, N, D]; 12 keys [rows, ring, G N];
//                               13 values [rows, ring, H D]; 14 decays [rows, ring, H];
//                               15 out [T, H D]; float32
//                     integers: G, H, N, D, threads
//                     reals:    beta_scale
//   state_space_scan  as above, with 0 xbc [T, H D + 2 G N]; 1 dt [T, H]; 2 constants [3, H]
//                     reals:    the limits of dt
//
// kernels/recurrent_state.py and kernels/recurrent_ops.py define states and results. With S the
// matrix at the start of a tile, G_j the logarithm of the decay from there to token j, k, q keys
// and queries and u the values that tokens add to the state:
//
//   delta rule:  u_j = beta_j (v_j - exp(G_j) S^T k_j - sum over i < j of exp(G_j - G_i) k_i.k_j
//   u_i) state space: u_j = d_j x_j out_j = exp(G_j) S^T q_j + sum over i <= j of exp(G_j - G_i)
//   k_i.q_j u_i next S = exp(G_15) S + sum over i of exp(G_15 - G_i) k_i u_i^T
//
// A task of phase 0 computes some heads of one group and some columns of D for one chunk, tile by
// tile. Other tasks read the keys and decays in the ring of the row, so that a chunk that replaces
// tokens which it reads writes its own in phase 1.
#pragma once

#include "cpu/ops/recurrent_tile.inl.h"
#include "cpu/sizes.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace recurrent {

constexpr int64_t kMostHeads = 8;     // of a task
constexpr int64_t kLeastColumns = 32; // of a task: two cache lines

// The division of a call into tasks: parts of D, blocks of the heads of a group, groups, rows.
struct Division {
    int64_t heads, blocks, columns, parts;
};

// Makes about four tasks per thread. Heads of one group share the dot products of their keys, and
// parts of D repeat them.
PENSTOCK_INLINE Division divide(const Arguments& call, const Sizes& sizes) {
    const int64_t rows = call.tensor[4].shape[0], wanted = 4 * call.integer[4];
    const int64_t of_group = sizes.heads / sizes.groups;
    Division division;
    const int64_t most = smaller(of_group, kMostHeads);
    division.heads = larger(1, smaller(most, rows * sizes.heads / wanted));
    division.blocks = ceil_div(of_group, division.heads);
    const int64_t tasks = larger(1, rows * sizes.groups * division.blocks);
    const int64_t parts =
        smaller(ceil_div(wanted, tasks), ceil_div(sizes.value_dim, kLeastColumns));
    const int64_t units = ceil_div(ceil_div(sizes.value_dim, kLeastColumns), parts);
    division.columns = units * kLeastColumns;
    division.parts = ceil_div(sizes.value_dim, division.columns);
    return division;
}

// Returns whether the pending tokens of the chunk take the places of tokens that the chunk reads.
PENSTOCK_INLINE bool replaces_own(const Arguments& call, const StateChunk& chunk) {
    return chunk.stop - chunk.base > call.tensor[12].shape[1];
}

int scan_phases(const Arguments& call) {
    for (int64_t row = 0; row < call.tensor[4].shape[0]; ++row) {
        if (replaces_own(call, chunk_of(call, row)))
            return 2;
    }
    return 1;
}

int64_t scan_tasks(const Arguments& call, int phase) {
    const int64_t rows = call.tensor[4].shape[0];
    const Sizes sizes = sizes_of(call);
    if (phase == 1)
        return rows * sizes.groups;
    const Division division = divide(call, sizes);
    return rows * sizes.groups * division.blocks * division.parts;
}

// Divides the workspace. Returns the number of floats; a null `data` gives the size alone.
PENSTOCK_INLINE int64_t place_scratch(const Arguments& call, const Sizes& sizes, float* data,
                                      Scratch& scratch) {
    const bool drafts = call.tensor[12].shape[1] > kTile;
    const int64_t heads = smaller(sizes.heads / sizes.groups, kMostHeads);
    int64_t used = 0;
    const auto take = [&](int64_t count) {
        float* taken = data == nullptr ? nullptr : data + used;
        used += ceil_div(count, kLineBytes / 4) * (kLineBytes / 4);
        return taken;
    };
    scratch.keys = take(kTile * sizes.key_dim);
    scratch.queries = take(kTile * sizes.key_dim);
    scratch.folded_keys = take(kTile * sizes.key_dim);
    scratch.products = take(2 * kTile * sizes.value_dim);
    scratch.values = take(kTile * sizes.value_dim);
    scratch.key_scores = take(kTile * kTile);
    scratch.query_scores = take(kTile * kTile);
    scratch.key_weights = take(kTile * kTile);
    scratch.query_weights = take(kTile * kTile);
    scratch.draft_matrices = take(drafts ? heads * sizes.key_dim * sizes.value_dim : 0);
    return used;
}

size_t scan_workspace(const Arguments& call) {
    Scratch scratch;
    const int64_t floats = place_scratch(call, sizes_of(call), nullptr, scratch);
    return static_cast<size_t>(floats) * sizeof(float);
}

// Copies a matrix, or writes zeros if `from` is null.
PENSTOCK_INLINE void copy_matrix(const float* from, const StateMatrix& to, int64_t rows,
                                 int64_t columns) {
    for (int64_t n = 0; n < rows; ++n) {
        for (int64_t d = 0; d < columns; d += kLanes) {
            const int lanes = lanes_from(d, columns);
            const F32 value = from ? load_lanes(from + n * to.stride + d, lanes) : broadcast(0.0f);
            store_lanes(to.row(n) + d, value, lanes);
        }
    }
}

// Returns the share's columns of the matrix of a head in a slot.
PENSTOCK_INLINE StateMatrix matrix_of(const Arguments& call, const Share& share, int64_t slot,
                                      int64_t index) {
    const TensorView& matrix = call.tensor[11];
    float* head = matrix.row<float>(slot) + (share.head + index) * matrix.stride[1];
    return {head + share.column, matrix.shape[3]};
}

// Copies the matrix of a head to the snapshot if it has the tokens of the snapshot.
PENSTOCK_INLINE void save_matrix(const Arguments& call, const Share& share, int64_t position,
                                 int64_t index, const StateMatrix& matrix, int64_t rows) {
    if (share.chunk.save_position == position)
        copy_matrix(matrix.data, matrix_of(call, share, share.chunk.save, index), rows,
                    share.columns);
}

// Returns the matrix of a head before the chunk, in the target of the chunk.
PENSTOCK_INLINE StateMatrix open_matrix(const Arguments& call, const Sizes& sizes,
                                        const Share& share, int64_t index) {
    const StateChunk& chunk = share.chunk;
    const StateMatrix matrix = matrix_of(call, share, chunk.target, index);
    if (chunk.source != chunk.target) {
        const bool empty = chunk.source < 0;
        const float* from = empty ? nullptr : matrix_of(call, share, chunk.source, index).data;
        copy_matrix(from, matrix, sizes.key_dim, share.columns);
    }
    save_matrix(call, share, chunk.base, index, matrix, sizes.key_dim);
    return matrix;
}

// Adds a complete tile to the matrix of a head, and returns the matrix that later tiles read: a
// copy if the tile has draft tokens.
PENSTOCK_INLINE StateMatrix close_tile(const Arguments& call, const Sizes& sizes,
                                       const Share& share, const TileTokens& tile,
                                       const HeadTile& state, const Scratch& scratch,
                                       const StateMatrix& from) {
    const int64_t stop = tile.start + kTile, index = state.head - share.head;
    const bool accepted = stop <= share.chunk.end;
    if (!accepted && stop >= share.chunk.stop)
        return from;
    float* copy = scratch.draft_matrices + index * sizes.key_dim * sizes.value_dim;
    const StateMatrix to = accepted ? from : StateMatrix{copy, sizes.value_dim};
    fold_tile(sizes, tile, state, scratch, from, to, share.columns);
    save_matrix(call, share, stop, index, to, sizes.key_dim);
    return to;
}

// Writes the decays of the pending tokens of a tile.
PENSTOCK_INLINE void write_decays(const Arguments& call, const StateChunk& chunk,
                                  const TileTokens& tile, const HeadTile& state) {
    for (int64_t i = tile.old; i < tile.count; ++i) {
        if (tile.start + i >= chunk.end)
            in_ring(call.tensor[14], chunk, tile.start + i)[state.head] = state.logs[i];
    }
}

// Writes the keys of the pending tokens of a chunk.
template <class Rule>
PENSTOCK_INLINE void write_keys(const Arguments& call, const Sizes& sizes, const StateChunk& chunk,
                                int64_t group, float* room) {
    for (int64_t p = larger(chunk.start, chunk.end); p < chunk.stop; ++p) {
        const int64_t token = chunk.first + p - chunk.start;
        const float* key = Rule::key(call, sizes, token, group, room);
        float* to = in_ring(call.tensor[12], chunk, p) + group * sizes.key_dim;
        for (int64_t n = 0; n < sizes.key_dim; n += kLanes) {
            const int lanes = lanes_from(n, sizes.key_dim);
            store_lanes(to + n, load_lanes(key + n, lanes), lanes);
        }
    }
}

template <class Rule>
void compute_share(const Arguments& call, const Sizes& sizes, const Share& share,
                   const Scratch& scratch) {
    const StateChunk& chunk = share.chunk;
    const bool writes = share.column == 0 && !replaces_own(call, chunk);
    StateMatrix matrix[kMostHeads];
    for (int64_t h = 0; h < share.heads; ++h)
        matrix[h] = open_matrix(call, sizes, share, h);
    for (int64_t start = chunk.base; start < chunk.stop; start += kTile) {
        const TileTokens tile = tile_tokens<Rule>(call, sizes, share, start, scratch);
        for (int64_t h = 0; h < share.heads; ++h) {
            const HeadTile state = head_tile<Rule>(call, sizes, share, tile, h, scratch);
            products(tile.vectors, tile.num_vectors, matrix[h], sizes.key_dim, share.columns,
                     scratch.products, sizes.value_dim);
            values_and_results<Rule>(call, sizes, share, tile, state, scratch);
            if (tile.count == kTile)
                matrix[h] = close_tile(call, sizes, share, tile, state, scratch, matrix[h]);
            if (writes)
                write_decays(call, chunk, tile, state);
        }
    }
    if (writes && share.head % (sizes.heads / sizes.groups) == 0)
        write_keys<Rule>(call, sizes, chunk, share.group, scratch.keys);
}

// Writes the keys and decays of a group that no task of phase 0 wrote.
template <class Rule>
void write_replaced(const Arguments& call, const Sizes& sizes, const StateChunk& chunk,
                    int64_t group, const Scratch& scratch) {
    const int64_t of_group = sizes.heads / sizes.groups;
    write_keys<Rule>(call, sizes, chunk, group, scratch.keys);
    for (int64_t start = chunk.end; start < chunk.stop; start += kTile) {
        const TileTokens tile = token_range(chunk, start);
        for (int64_t h = 0; h < of_group; ++h) {
            HeadTile state;
            state.head = group * of_group + h;
            decay_logs<Rule>(call, sizes, chunk, tile, state);
            write_decays(call, chunk, tile, state);
        }
    }
}

PENSTOCK_INLINE Share share_of(const Arguments& call, const Sizes& sizes, int64_t task) {
    const Division division = divide(call, sizes);
    const int64_t of_group = sizes.heads / sizes.groups;
    Share share;
    share.column = remainder(task, division.parts) * division.columns;
    share.columns = smaller(division.columns, sizes.value_dim - share.column);
    task = quotient(task, division.parts);
    const int64_t first = remainder(task, division.blocks) * division.heads;
    task = quotient(task, division.blocks);
    share.group = remainder(task, sizes.groups);
    share.head = share.group * of_group + first;
    share.heads = smaller(division.heads, of_group - first);
    share.chunk = chunk_of(call, quotient(task, sizes.groups));
    return share;
}

template <class Rule>
void scan_run(const Arguments& call, int phase, int64_t task, Workspace& workspace) {
    const Sizes sizes = sizes_of(call);
    Scratch scratch;
    place_scratch(call, sizes, static_cast<float*>(workspace.data), scratch);
    if (phase == 0)
        return compute_share<Rule>(call, sizes, share_of(call, sizes, task), scratch);
    const StateChunk chunk = chunk_of(call, quotient(task, sizes.groups));
    if (replaces_own(call, chunk))
        write_replaced<Rule>(call, sizes, chunk, remainder(task, sizes.groups), scratch);
}

} // namespace recurrent

constexpr Kernel kScanKernels[] = {
    {"gated_delta_rule", recurrent::scan_phases, recurrent::scan_tasks,
     recurrent::scan_run<recurrent::DeltaRule>, recurrent::scan_workspace},
    {"state_space_scan", recurrent::scan_phases, recurrent::scan_tasks,
     recurrent::scan_run<recurrent::StateSpace>, recurrent::scan_workspace},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
