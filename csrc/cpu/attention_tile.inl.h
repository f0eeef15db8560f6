// The arithmetic of attention on one tile of keys: products of a few rows with a tile, and the
// tile's conversion. Included by attention.inl.h.
//
// Every output element is one chain of fused multiply-adds over ascending k, whatever the number
// of rows and vectors that are computed beside it. So all ways of blocking give the same bits.
#pragma once

#include "cpu/math.inl.h"
#include "cpu/simd.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {
namespace attention {

constexpr int kTile = 64; // keys, aligned to absolute positions
constexpr int kTileVectors = kTile / kLanes;

// What fits the register file: rows x vectors accumulators, the vectors and one broadcast.
#if defined(PENSTOCK_SIMD_AVX512)
constexpr int kMaxRows = 8;
constexpr int wide_vectors(int rows) {
    return rows <= 6 ? 4 : 2;
}
#elif defined(PENSTOCK_SIMD_AVX2)
constexpr int kMaxRows = 6;
constexpr int wide_vectors(int rows) {
    return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}
#else
constexpr int kMaxRows = 2;
constexpr int wide_vectors(int) {
    return 2;
}
#endif

PENSTOCK_INLINE F32 load_element(const float* p) {
    return load(p);
}
PENSTOCK_INLINE F32 load_element(const uint16_t* p) {
    return load_f16(p);
}
PENSTOCK_INLINE F32 load_element(const float* p, int n) {
    return load(p, n);
}
PENSTOCK_INLINE F32 load_element(const uint16_t* p, int n) {
    return load_f16(p, n);
}

// Fetches pieces of memory line by line while a product runs, to the second cache level: that takes
// twice the misses at a time that the first one does. The cache's blocks lie scattered, so the
// hardware does not see the next one coming; asked for all at once they would stall the loads.
struct Ahead {
    const char* const* piece = nullptr; // the one being fetched
    const char* const* end = nullptr;
    int64_t bytes = 0, offset = 0; // of a piece; of the next line in it

    void step() {
        if (piece == end)
            return;
        __builtin_prefetch(*piece + offset, 0, 2);
        offset += 64;
        if (offset >= bytes) {
            offset = 0;
            ++piece;
        }
    }
};

// In place of Ahead where nothing is to be fetched.
struct Nothing {
    void step() {}
};

// c[r][v] = (accumulate ? c[r][v] : 0) + sum over k < n of a[r][k] * b[v][k], one lane each.
// Vector v of step k lies at b[v] + k * b_stride; of row r at c + r * c_stride + v * kLanes.
// `ahead` keeps pace with what is read of b.
template <int rows, int vectors, class Element, class Fetch>
[[gnu::noinline]] void multiply_block(const float* a, int64_t a_stride, const Element* const* b,
                                      int64_t b_stride, int64_t n, float* c, int64_t c_stride,
                                      bool accumulate, Fetch& ahead) {
    F32 sum[rows][vectors];
    const Element* from[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
        from[v] = b[v];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            sum[r][v] = accumulate ? load(c + r * c_stride + v * kLanes) : broadcast(0.0f);
        }
    }
    Fetch fetch = ahead; // in registers
    constexpr int lines = (vectors * kLanes * static_cast<int>(sizeof(Element)) + 63) / 64;
    for (int64_t k = 0; k < n; ++k) {
#pragma GCC unroll 8
        for (int i = 0; i < lines; ++i)
            fetch.step();
        // Whichever side is shorter is held in registers; the other comes one at a time.
        if constexpr (rows < vectors) {
            F32 factor[rows];
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
                factor[r] = broadcast(a[r * a_stride + k]);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) {
                const F32 column = load_element(from[v] + k * b_stride);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r)
                    sum[r][v] = fma(factor[r], column, sum[r][v]);
            }
        } else {
            F32 column[vectors];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v)
                column[v] = load_element(from[v] + k * b_stride);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const F32 factor = broadcast(a[r * a_stride + k]);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v)
                    sum[r][v] = fma(factor, column[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            store(c + r * c_stride + v * kLanes, sum[r][v]);
    }
    ahead = fetch;
}

template <int rows, class Element, class Fetch>
void multiply_rows(const float* a, int64_t a_stride, const Element* const* b, int vectors,
                   int64_t b_stride, int64_t n, float* c, int64_t c_stride, bool accumulate,
                   Fetch& ahead) {
    constexpr int wide = wide_vectors(rows);
    int v = 0;
    for (; v + wide <= vectors; v += wide) {
        multiply_block<rows, wide>(a, a_stride, b + v, b_stride, n, c + v * kLanes, c_stride,
                                   accumulate, ahead);
    }
    for (; wide > 2 && v + 2 <= vectors; v += 2) {
        multiply_block<rows, 2>(a, a_stride, b + v, b_stride, n, c + v * kLanes, c_stride,
                                accumulate, ahead);
    }
    for (; v < vectors; ++v) {
        multiply_block<rows, 1>(a, a_stride, b + v, b_stride, n, c + v * kLanes, c_stride,
                                accumulate, ahead);
    }
}

// multiply_rows for 1 <= rows <= kMaxRows.
template <int most = kMaxRows, class Element, class Fetch>
PENSTOCK_INLINE void multiply(int rows, const float* a, int64_t a_stride, const Element* const* b,
                              int vectors, int64_t b_stride, int64_t n, float* c, int64_t c_stride,
                              bool accumulate, Fetch& ahead) {
    if constexpr (most > 1) {
        if (rows < most) {
            multiply<most - 1>(rows, a, a_stride, b, vectors, b_stride, n, c, c_stride, accumulate,
                               ahead);
            return;
        }
    }
    multiply_rows<most>(a, a_stride, b, vectors, b_stride, n, c, c_stride, accumulate, ahead);
}

// Softmax state of one row within a span, in units of log2.
struct Running {
    float* highest;
    float* mass; // [kLanes]: sums of the keys that fall on each lane
    float* out;  // [vectors of D]: the weighted sum of values so far
};

PENSTOCK_INLINE float exp2_below(float x, float highest) {
    if (x == highest)
        return 1.0f; // also both -inf
    float result[kLanes];
    store(result, exp2_nonpositive(broadcast(x) - broadcast(highest)));
    return result[0];
}

// Turns scores of keys [begin, end) of a tile into weights relative to the row's new highest
// score, in place, and brings the row's state to that highest score.
PENSTOCK_INLINE void weigh(float* scores, int begin, int end, Running row, int out_vectors) {
    const int first_vector = begin / kLanes, last_vector = (end - 1) / kLanes;
    const F32 hidden = broadcast(-__builtin_inff());
    F32 top = broadcast(*row.highest);
    for (int v = first_vector; v <= last_vector; ++v) {
        F32 score = load(scores + v * kLanes);
        if (begin > v * kLanes)
            score = select(first(begin - v * kLanes), hidden, score);
        score = select(first(end - v * kLanes), score, hidden);
        store(scores + v * kLanes, score);
        top = max(top, score);
    }
    const float before = *row.highest, highest = reduce_max(top);
    const float shrink = exp2_below(before, highest);
    // Where all scores so far are -inf, any finite reference makes all weights 0.
    const F32 reference = broadcast(highest == -__builtin_inff() ? 0.0f : highest);
    F32 mass = load(row.mass) * broadcast(shrink);
    for (int v = first_vector; v <= last_vector; ++v) {
        const F32 weight = exp2_nonpositive(load(scores + v * kLanes) - reference);
        store(scores + v * kLanes, weight);
        mass = mass + weight;
    }
    store(row.mass, mass);
    *row.highest = highest;
    if (shrink != 1.0f) {
        for (int v = 0; v < out_vectors; ++v) {
            store(row.out + v * kLanes, load(row.out + v * kLanes) * broadcast(shrink));
        }
    }
}

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
