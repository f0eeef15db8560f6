// The operands of gated_delta_rule and state_space_scan: keys, queries, decays and the factors of
// values. Included by the ISA files.
#pragma once

#include "cpu/ops/recurrent_chunk.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace recurrent {

struct Sizes {
    int64_t groups, heads, key_dim, value_dim;

    int64_t keys() const { return groups * key_dim; }
};

PENSTOCK_INLINE Sizes sizes_of(const Arguments& call) {
    return {call.integer[0], call.integer[1], call.integer[2], call.integer[3]};
}

// Returns log(1 + y) for y in [0, 1]: 2 artanh(y / (2 + y)) as a series.
PENSTOCK_INLINE F32 log_of_one_plus(F32 y) {
    const F32 z = y / (y + broadcast(2.0f));
    const F32 square = z * z;
    F32 p = broadcast(2.0f / 15.0f);
    p = fma(p, square, broadcast(2.0f / 13.0f));
    p = fma(p, square, broadcast(2.0f / 11.0f));
    p = fma(p, square, broadcast(2.0f / 9.0f));
    p = fma(p, square, broadcast(2.0f / 7.0f));
    p = fma(p, square, broadcast(2.0f / 5.0f));
    p = fma(p, square, broadcast(2.0f / 3.0f));
    p = fma(p, square, broadcast(2.0f));
    return p * z;
}

// Returns log(1 + exp(x)).
PENSTOCK_INLINE F32 softplus(F32 x) {
    return max(broadcast(0.0f), x) + log_of_one_plus(exp(-abs(x)));
}

// Computes to = x / sqrt(sum(x^2) + 1e-6) * scale.
PENSTOCK_INLINE void unit_vector(const float* x, float scale, int64_t dim, float* to) {
    F32 squares = broadcast(0.0f);
    for (int64_t i = 0; i < dim; i += kLanes) {
        const F32 v = load_lanes(x + i, lanes_from(i, dim));
        squares = fma(v, v, squares);
    }
    const F32 factor = broadcast(scale / __builtin_sqrtf(reduce_add(squares) + 1e-6f));
    for (int64_t i = 0; i < dim; i += kLanes) {
        const int n = lanes_from(i, dim);
        store_lanes(to + i, load_lanes(x + i, n) * factor, n);
    }
}

// Loads element `column` of rows first, first + 1, ... of a tensor: `count` rows, zeros after them.
struct TokenColumn {
    float value[kTile] = {};

    TokenColumn(const TensorView& tensor, int64_t first, int64_t count, int64_t column) {
        for (int64_t i = 0; i < count; ++i)
            value[i] = tensor.row<float>(first + i)[column];
    }
};

// A rule has these functions. key and query return a vector of a token; `room` [N] may hold it.
// factors computes for `count` tokens from `first` on the logarithms of their decays and the
// factors of their values, 16 each. value returns the vector of a token and a head that the factor
// multiplies.

struct DeltaRule {
    static constexpr bool reads_keys = true; // values depend on the state

    PENSTOCK_INLINE const float* query(const Arguments& call, const Sizes& sizes, int64_t token,
                                       int64_t group, float* room) {
        const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(sizes.key_dim));
        const float* from = call.tensor[0].row<float>(token) + group * sizes.key_dim;
        unit_vector(from, scale, sizes.key_dim, room);
        return room;
    }
    PENSTOCK_INLINE const float* key(const Arguments& call, const Sizes& sizes, int64_t token,
                                     int64_t group, float* room) {
        const float* from = call.tensor[0].row<float>(token) + sizes.keys();
        unit_vector(from + group * sizes.key_dim, 1.0f, sizes.key_dim, room);
        return room;
    }
    PENSTOCK_INLINE const float* value(const Arguments& call, const Sizes& sizes, int64_t token,
                                       int64_t head) {
        return call.tensor[0].row<float>(token) + 2 * sizes.keys() + head * sizes.value_dim;
    }
    PENSTOCK_INLINE void factors(const Arguments& call, const Sizes& sizes, int64_t first,
                                 int64_t count, int64_t head, float* logs, float* factor) {
        const TokenColumn b(call.tensor[1], first, count, head);
        const TokenColumn a(call.tensor[1], first, count, sizes.heads + head);
        const F32 rate = broadcast(-call.tensor[2].row<float>(0)[head]);
        const F32 bias = broadcast(call.tensor[2].row<float>(1)[head]);
        const F32 one = broadcast(1.0f), scale = broadcast(call.real[0]);
        for (int64_t i = 0; i < kTile; i += kLanes) {
            store(logs + i, rate * softplus(load(a.value + i) + bias));
            store(factor + i, scale / (one + exp(-load(b.value + i))));
        }
    }
};

struct StateSpace {
    static constexpr bool reads_keys = false;

    PENSTOCK_INLINE const float* query(const Arguments& call, const Sizes& sizes, int64_t token,
                                       int64_t group, float*) {
        return call.tensor[0].row<float>(token) + sizes.heads * sizes.value_dim + sizes.keys() +
               group * sizes.key_dim;
    }
    PENSTOCK_INLINE const float* key(const Arguments& call, const Sizes& sizes, int64_t token,
                                     int64_t group, float*) {
        return call.tensor[0].row<float>(token) + sizes.heads * sizes.value_dim +
               group * sizes.key_dim;
    }
    PENSTOCK_INLINE const float* value(const Arguments& call, const Sizes& sizes, int64_t token,
                                       int64_t head) {
        return call.tensor[0].row<float>(token) + head * sizes.value_dim;
    }
    PENSTOCK_INLINE void factors(const Arguments& call, const Sizes&, int64_t first, int64_t count,
                                 int64_t head, float* logs, float* factor) {
        const TokenColumn dt(call.tensor[1], first, count, head);
        const F32 rate = broadcast(-call.tensor[2].row<float>(0)[head]);
        const F32 bias = broadcast(call.tensor[2].row<float>(1)[head]);
        const F32 low = broadcast(call.real[0]), high = broadcast(call.real[1]);
        for (int64_t i = 0; i < kTile; i += kLanes) {
            const F32 step = min(high, max(low, softplus(load(dt.value + i) + bias)));
            store(factor + i, step);
            store(logs + i, rate * step);
        }
    }
};

} // namespace recurrent
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
