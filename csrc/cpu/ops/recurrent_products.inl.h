// Matrix products over one tile of a matrix state. Included by the ISA files.
//
// Every element is one chain of multiply-adds in ascending order, so that its bits depend neither
// on the block of rows nor on the columns that are computed together.
#pragma once

#include "cpu/ops/recurrent_chunk.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace recurrent {

// Rows of a register block, and its vectors for many and for few rows: few rows read the matrix
// from memory, in long runs.
#if defined(PENSTOCK_SIMD_AVX512)
constexpr int kBlockRows = 8, kWideVectors = 8;
#else
constexpr int kBlockRows = 4, kWideVectors = 4;
#endif
constexpr int kBlockVectors = 2;
constexpr int kFewRows = 2;

// Vector v of a row of `count` elements. `whole`: all of its elements exist.
template <bool whole>
PENSTOCK_INLINE F32 load_vector(const float* p, int v, int64_t count) {
    return whole ? load(p + v * kLanes)
                 : load(p + v * kLanes, static_cast<int>(count - v * kLanes));
}
template <bool whole>
PENSTOCK_INLINE void store_vector(float* p, F32 a, int v, int64_t count) {
    if constexpr (whole) {
        store(p + v * kLanes, a);
    } else if (v * kLanes < count) {
        store(p + v * kLanes, a, static_cast<int>(count - v * kLanes));
    }
}

// A matrix [depth, columns] in memory.
struct StateMatrix {
    float* data;
    int64_t stride;

    float* row(int64_t n) const { return data + n * stride; }
};

// Computes rows of `to` = the sum over n of vectors[r][n] * matrix[n], for `rows` vectors.
template <int rows, int columns, bool whole>
PENSTOCK_INLINE void product_block(const float* const* vectors, const StateMatrix& matrix,
                                   int64_t depth, int64_t count, float* to, int64_t to_stride) {
    F32 sum[rows][columns];
    const float* vector[rows];
    for (int r = 0; r < rows; ++r) {
        vector[r] = vectors[r];
        for (int v = 0; v < columns; ++v)
            sum[r][v] = broadcast(0.0f);
    }
    const float* line = matrix.data;
    for (int64_t n = 0; n < depth; ++n, line += matrix.stride) {
        F32 element[columns];
#pragma GCC unroll 8
        for (int v = 0; v < columns; ++v)
            element[v] = load_vector<whole>(line, v, count);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const F32 factor = broadcast(vector[r][n]);
#pragma GCC unroll 8
            for (int v = 0; v < columns; ++v)
                sum[r][v] = fma(factor, element[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < columns; ++v)
            store_vector<whole>(to + r * to_stride, sum[r][v], v, count);
    }
}

template <int columns, bool whole>
PENSTOCK_INLINE void product_panel(const float* const* vectors, int64_t rows,
                                   const StateMatrix& matrix, int64_t depth, int64_t count,
                                   float* to, int64_t to_stride) {
    int64_t r = 0;
    if constexpr (columns <= kBlockVectors) {
        for (; r + kBlockRows <= rows; r += kBlockRows)
            product_block<kBlockRows, columns, whole>(vectors + r, matrix, depth, count,
                                                      to + r * to_stride, to_stride);
    }
    for (; r + 2 <= rows; r += 2)
        product_block<2, columns, whole>(vectors + r, matrix, depth, count, to + r * to_stride,
                                         to_stride);
    if (r < rows)
        product_block<1, columns, whole>(vectors + r, matrix, depth, count, to + r * to_stride,
                                         to_stride);
}

// Calls f.template operator()<vectors, whole>(first column, number of columns) for panels of
// `vectors` vectors, then of half as many, and so on, that cover the columns from d on.
template <int vectors, class Function>
PENSTOCK_INLINE void each_panel(int64_t columns, const Function& f, int64_t d = 0) {
    constexpr int64_t width = vectors * kLanes;
    for (; d + width <= columns; d += width)
        f.template operator()<vectors, true>(d, width);
    if constexpr (vectors > 1) {
        each_panel<vectors / 2>(columns, f, d);
    } else if (d < columns) {
        f.template operator()<1, false>(d, columns - d);
    }
}

// Computes the product of `rows` vectors [depth] and the matrix [depth, columns]: row r to
// to + r * to_stride.
inline void products(const float* const* vectors, int64_t rows, const StateMatrix& matrix,
                     int64_t depth, int64_t columns, float* to, int64_t to_stride) {
    const auto panel = [&]<int width, bool whole>(int64_t d, int64_t count) {
        product_panel<width, whole>(vectors, rows, {matrix.data + d, matrix.stride}, depth, count,
                                    to + d, to_stride);
    };
    if (rows <= kFewRows) {
        each_panel<kWideVectors>(columns, panel);
    } else {
        each_panel<kBlockVectors>(columns, panel);
    }
}

// Computes rows n of `to` = scale * from + the sum over the tile of keys[i][n] * values[i].
template <int rows, int columns, bool whole>
PENSTOCK_INLINE void fold_block(const float* keys, int64_t key_stride, const float* const* values,
                                int64_t d, int64_t count, float scale, const StateMatrix& from,
                                const StateMatrix& to) {
    F32 sum[rows][columns];
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < columns; ++v)
            sum[r][v] = broadcast(scale) * load_vector<whole>(from.row(r), v, count);
    }
    for (int64_t i = 0; i < kTile; ++i) {
        F32 value[columns];
#pragma GCC unroll 8
        for (int v = 0; v < columns; ++v)
            value[v] = load_vector<whole>(values[i] + d, v, count);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const F32 factor = broadcast(keys[i * key_stride + r]);
#pragma GCC unroll 8
            for (int v = 0; v < columns; ++v)
                sum[r][v] = fma(factor, value[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < columns; ++v)
            store_vector<whole>(to.row(r), sum[r][v], v, count);
    }
}

// Computes to = scale * from + the sum over the tile of the outer products of keys [16, depth] and
// values [16] [columns]. depth is a multiple of 8.
inline void fold(const float* keys, const float* const* values, float scale,
                 const StateMatrix& from, const StateMatrix& to, int64_t depth, int64_t columns) {
    each_panel<kBlockVectors>(columns, [&]<int width, bool whole>(int64_t d, int64_t count) {
        for (int64_t n = 0; n < depth; n += kBlockRows) {
            fold_block<kBlockRows, width, whole>(keys + n, depth, values, d, count, scale,
                                                 {from.row(n) + d, from.stride},
                                                 {to.row(n) + d, to.stride});
        }
    });
}

// Computes the dot products of a vector [depth] with `count` keys; elements of `to` [16] past
// `count`, up to a multiple of 8, are undefined.
PENSTOCK_INLINE void dots(const float* vector, const float* const* keys, int64_t count,
                          int64_t depth, float* to) {
    for (int64_t i = 0; i < count; i += 8) {
        const float* key[8];
        F32 sum[8];
        for (int r = 0; r < 8; ++r) {
            key[r] = keys[i + r < count ? i + r : i];
            sum[r] = broadcast(0.0f);
        }
        for (int64_t n = 0; n < depth; n += kLanes) {
            const int lanes = lanes_from(n, depth);
            const F32 x = load_lanes(vector + n, lanes);
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r)
                sum[r] = fma(x, load_lanes(key[r] + n, lanes), sum[r]);
        }
        store_lanes(to + i, reduce_add_each(sum), 8);
    }
}

} // namespace recurrent
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
