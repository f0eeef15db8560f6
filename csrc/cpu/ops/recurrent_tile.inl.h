// One tile of a chunk of a recurrent layer: the tokens of a group, and the values and results of a
// head. Included by the ISA files. recurrent_scan.inl.h states the formulas.
#pragma once

#include "cpu/ops/recurrent_products.inl.h"
#include "cpu/ops/recurrent_rules.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace recurrent {

// The part of a call that a task computes: heads of one group, and columns of D, of a chunk.
struct Share {
    StateChunk chunk;
    int64_t group, head, heads, column, columns;
};

// Scratch memory of a task, in floats.
struct Scratch {
    float *keys, *queries, *folded_keys; // [16, N] each
    float* products;                     // [32, D]
    float* values;                       // [16, D]: values that are not pending after the chunk
    float *key_scores, *query_scores;    // [16, 16] each: dot products of a key or query and keys
    float *key_weights, *query_weights;  // [16, 16] each: the scores of a head with its decays
    float* draft_matrices;               // [heads, N, D]
};

// A tile whose tokens [0, old) are pending and [old, count) belong to the chunk.
struct TileTokens {
    int64_t start, old, count;
    int64_t token;                    // index in the step of the token `old`
    const float* keys[kTile];         // of all tokens
    const float* vectors[2 * kTile];  // keys (if the rule reads them), then queries, of the chunk's
    int64_t num_vectors, query_place; // place of the first query in `vectors`
};

PENSTOCK_INLINE float* in_ring(const TensorView& tensor, const StateChunk& chunk,
                               int64_t position) {
    return tensor.row<float>(chunk.target) + position % tensor.shape[1] * tensor.stride[1];
}

// Returns the tile that starts at position `start`, without keys and queries.
PENSTOCK_INLINE TileTokens token_range(const StateChunk& chunk, int64_t start) {
    TileTokens tile;
    tile.start = start;
    tile.old = smaller(kTile, larger(0, chunk.start - start));
    tile.count = smaller(kTile, chunk.stop - start);
    tile.token = chunk.first + start + tile.old - chunk.start;
    tile.num_vectors = tile.query_place = 0;
    return tile;
}

// Returns the tile that starts at position `start`, with the dot products of its vectors and keys.
template <class Rule>
PENSTOCK_INLINE TileTokens tile_tokens(const Arguments& call, const Sizes& sizes,
                                       const Share& share, int64_t start, const Scratch& scratch) {
    const StateChunk& chunk = share.chunk;
    const int64_t dim = sizes.key_dim;
    TileTokens tile = token_range(chunk, start);
    for (int64_t i = 0; i < tile.old; ++i)
        tile.keys[i] = in_ring(call.tensor[12], chunk, start + i) + share.group * dim;
    for (int64_t i = tile.old; i < tile.count; ++i) {
        const int64_t token = tile.token + i - tile.old;
        tile.keys[i] = Rule::key(call, sizes, token, share.group, scratch.keys + i * dim);
        if constexpr (Rule::reads_keys)
            tile.vectors[tile.num_vectors++] = tile.keys[i];
    }
    tile.query_place = tile.num_vectors;
    for (int64_t i = tile.old; i < tile.count; ++i) {
        const int64_t token = tile.token + i - tile.old;
        const float* query =
            Rule::query(call, sizes, token, share.group, scratch.queries + i * dim);
        tile.vectors[tile.num_vectors++] = query;
        if constexpr (Rule::reads_keys)
            dots(tile.keys[i], tile.keys, i, dim, scratch.key_scores + i * kTile);
        dots(query, tile.keys, i + 1, dim, scratch.query_scores + i * kTile);
    }
    return tile;
}

// The decays and values of one head in a tile.
struct HeadTile {
    int64_t head;
    float logs[kTile];    // logarithm of the decay from the start of the tile to each token
    float decays[kTile];  // e^logs
    float factors[kTile]; // of the values; index 0 is token `old`
    float* values[kTile]; // the task's columns of each token's value
};

// Computes the logarithms of the decays of the tokens [0, count) of the tile at `start`, of which
// [0, old) are pending; and the factors of the chunk's values.
template <class Rule>
PENSTOCK_INLINE void decay_logs(const Arguments& call, const Sizes& sizes, const StateChunk& chunk,
                                const TileTokens& tile, HeadTile& state) {
    float steps[kTile];
    Rule::factors(call, sizes, tile.token, tile.count - tile.old, state.head, steps, state.factors);
    float log = 0.0f;
    for (int64_t i = 0; i < kTile; ++i) {
        if (i < tile.old) {
            log = in_ring(call.tensor[14], chunk, tile.start + i)[state.head];
        } else if (i < tile.count) {
            log += steps[i - tile.old];
        }
        state.logs[i] = log;
    }
}

// Multiplies row i of `scores` by exp(logs[i] - logs[0 to i]), for the tokens of the chunk.
PENSTOCK_INLINE void weigh(const TileTokens& tile, const HeadTile& state, const float* scores,
                           float* weights) {
    for (int64_t i = tile.old; i < tile.count; ++i) {
        for (int64_t k = 0; k <= i; k += kLanes) {
            const F32 decay = exp(broadcast(state.logs[i]) - load(state.logs + k));
            store(weights + i * kTile + k, decay * load(scores + i * kTile + k));
        }
    }
}

// Returns head `index` of a share: its decays, the weights of its scores, and where its values are.
template <class Rule>
PENSTOCK_INLINE HeadTile head_tile(const Arguments& call, const Sizes& sizes, const Share& share,
                                   const TileTokens& tile, int64_t index, const Scratch& scratch) {
    HeadTile state;
    state.head = share.head + index;
    decay_logs<Rule>(call, sizes, share.chunk, tile, state);
    for (int64_t k = 0; k < kTile; k += kLanes)
        store(state.decays + k, exp(load(state.logs + k)));
    if constexpr (Rule::reads_keys)
        weigh(tile, state, scratch.key_scores, scratch.key_weights);
    weigh(tile, state, scratch.query_scores, scratch.query_weights);
    for (int64_t i = 0; i < tile.count; ++i) {
        const int64_t position = tile.start + i;
        state.values[i] = i < tile.old || position >= share.chunk.end
                              ? in_ring(call.tensor[13], share.chunk, position) +
                                    state.head * sizes.value_dim + share.column
                              : scratch.values + i * sizes.value_dim;
    }
    return state;
}

// Adds weights[i] times the value of token i, for `tokens` tokens, to `sum` (subtracts with
// `minus`).
template <int vectors, bool whole, bool minus>
PENSTOCK_INLINE void add_values(const HeadTile& state, const float* weights, int64_t tokens,
                                int64_t d, int64_t count, F32 (&sum)[vectors]) {
    for (int64_t i = 0; i < tokens; ++i) {
        const F32 weight = broadcast(weights[i]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            const F32 value = load_vector<whole>(state.values[i] + d, v, count);
            sum[v] = minus ? fnma(weight, value, sum[v]) : fma(weight, value, sum[v]);
        }
    }
}

// Computes the values and the results of the chunk's tokens, columns d to d + count of the share.
template <class Rule, int vectors, bool whole>
PENSTOCK_INLINE void compute_columns(const Arguments& call, const Sizes& sizes, const Share& share,
                                     const TileTokens& tile, const HeadTile& state,
                                     const Scratch& scratch, int64_t d, int64_t count) {
    F32 sum[vectors];
    const auto product = [&](int64_t place, int v) {
        return load_vector<whole>(scratch.products + place * sizes.value_dim + d, v, count);
    };
    const auto given = [&](int64_t i, int v) {
        const int64_t token = tile.token + i - tile.old;
        return load_vector<whole>(Rule::value(call, sizes, token, state.head) + share.column + d, v,
                                  count);
    };
    for (int64_t i = tile.old; i < tile.count; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            sum[v] = given(i, v);
            if constexpr (Rule::reads_keys)
                sum[v] = fnma(broadcast(state.decays[i]), product(i - tile.old, v), sum[v]);
        }
        if constexpr (Rule::reads_keys)
            add_values<vectors, whole, true>(state, scratch.key_weights + i * kTile, i, d, count,
                                             sum);
        for (int v = 0; v < vectors; ++v)
            store_vector<whole>(state.values[i] + d,
                                broadcast(state.factors[i - tile.old]) * sum[v], v, count);
    }
    for (int64_t i = tile.old; i < tile.count; ++i) {
        float* out = call.tensor[15].row<float>(tile.token + i - tile.old) +
                     state.head * sizes.value_dim + share.column + d;
        for (int v = 0; v < vectors; ++v)
            sum[v] = broadcast(state.decays[i]) * product(tile.query_place + i - tile.old, v);
        add_values<vectors, whole, false>(state, scratch.query_weights + i * kTile, i + 1, d, count,
                                          sum);
        for (int v = 0; v < vectors; ++v) {
            if constexpr (!Rule::reads_keys)
                sum[v] =
                    fma(broadcast(call.tensor[2].row<float>(2)[state.head]), given(i, v), sum[v]);
            store_vector<whole>(out, sum[v], v, count);
        }
    }
}

// Computes the values and the results of the chunk's tokens from the products of the tile's vectors
// and the matrix.
template <class Rule>
PENSTOCK_INLINE void values_and_results(const Arguments& call, const Sizes& sizes,
                                        const Share& share, const TileTokens& tile,
                                        const HeadTile& state, const Scratch& scratch) {
    each_panel<kWideVectors>(share.columns, [&]<int vectors, bool whole>(int64_t d, int64_t count) {
        compute_columns<Rule, vectors, whole>(call, sizes, share, tile, state, scratch, d, count);
    });
}

// Adds a complete tile to `from`.
PENSTOCK_INLINE void fold_tile(const Sizes& sizes, const TileTokens& tile, const HeadTile& state,
                               const Scratch& scratch, const StateMatrix& from,
                               const StateMatrix& to, int64_t columns) {
    float remaining[kTile]; // decay from each token to the end of the tile
    for (int64_t k = 0; k < kTile; k += kLanes)
        store(remaining + k, exp(broadcast(state.logs[kTile - 1]) - load(state.logs + k)));
    for (int64_t i = 0; i < kTile; ++i) {
        float* key = scratch.folded_keys + i * sizes.key_dim;
        for (int64_t n = 0; n < sizes.key_dim; n += kLanes) {
            const int lanes = lanes_from(n, sizes.key_dim);
            store_lanes(key + n, broadcast(remaining[i]) * load_lanes(tile.keys[i] + n, lanes),
                        lanes);
        }
    }
    fold(scratch.folded_keys, state.values, state.decays[kTile - 1], from, to, sizes.key_dim,
         columns);
}

} // namespace recurrent
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
