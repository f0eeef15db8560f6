// Products of a few attention rows with a tile of keys. Included by attention.inl.h.
//
// Every output element is one chain of additions over ascending k, for any number of rows and
// vectors computed together, so that all block sizes give the same bits.
#pragma once

#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/unrolled.h"
#include "cpu/sizes.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

constexpr int kTile = 64; // keys of a tile; tiles are aligned to absolute positions
constexpr int kTileVectors = kTile / kLanes;

// Block sizes that fit the register file, which holds rows x vectors accumulators, the vectors and
// one broadcast.
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

// Prefetches pieces of memory line by line during a product, into the L2 cache, which allows twice
// as many outstanding misses as L1. KV blocks are scattered, so the hardware prefetcher cannot
// predict the next one; prefetching all lines at once would stall the loads.
struct Prefetcher {
    const char* const* piece = nullptr; // the current piece
    const char* const* end = nullptr;
    int64_t bytes = 0, offset = 0; // bytes of each piece; next offset in the current one
    int64_t period = 1, turn = 0;  // one of `period` products prefetches; products since the last

    // Spreads the lines over products that take `steps` steps together.
    void pace(int64_t steps) {
        const int64_t lines = (end - piece) * ceil_div(bytes, kLineBytes);
        period = lines > 0 ? quotient(steps, lines) : 1;
    }
    // Returns whether the next product prefetches.
    bool takes_turn() {
        if (++turn < period)
            return false;
        turn = 0;
        return piece != end;
    }
    void step() {
        if (piece == end)
            return;
        prefetch_l2(*piece + offset);
        offset += kLineBytes;
        if (offset >= bytes) {
            offset = 0;
            ++piece;
        }
    }
    void four_steps() {
        if (piece == end)
            return;
        if (offset + 4 * kLineBytes > bytes) {
            for (int i = 0; i < 4; ++i)
                step();
            return;
        }
        const char* line = *piece + offset;
        for (int i = 0; i < 4; ++i)
            prefetch_l2(line + i * kLineBytes);
        offset += 4 * kLineBytes;
        if (offset >= bytes) {
            offset = 0;
            ++piece;
        }
    }
    [[gnu::noinline]] void steps(int64_t count) {
        for (int64_t i = 0; i < count && piece != end; ++i)
            step();
    }
};

// Replaces Prefetcher if there is nothing to prefetch.
struct NoPrefetch {
    static bool takes_turn() { return true; }
    void step() {}
    void four_steps() {}
};

// c[r][v] = (accumulate ? c[r][v] : 0) + sum over k < n of a[r][k] * b[v][k], per lane. Row r of c
// starts at c + r * c_stride and vector v of a row at v * kLanes in it; row r of a starts at a + r
// * a_stride. The prefetcher advances by the bytes that are read from b.
//
// Products defines a step of k:
//   Factor, Stored          element types of a and b; a step reads kFactors elements of a and
//                           kLoaded bytes of each b[v]
//   factor(a) -> Factors    loads elements of a into every lane
//   column(b, k, stride)    loads the elements of b in step k
//   add(sum, factor, column) adds the products of one step
template <int rows, int vectors, class Products, class Fetch>
[[gnu::noinline]] void multiply_block(const typename Products::Factor* a, int64_t a_stride,
                                      const typename Products::Stored* const* b, int64_t b_stride,
                                      int64_t n, float* c, int64_t c_stride, bool accumulate,
                                      Fetch& prefetcher) {
    F32 sum[rows][vectors];
    const typename Products::Stored* from[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
        from[v] = b[v];
    const float* old = c;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, old += c_stride) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            sum[r][v] = accumulate ? load(old + v * kLanes) : broadcast(0.0f);
    }
    Fetch fetch = prefetcher; // a copy, which stays in registers
    constexpr int lines = (vectors * Products::kLoaded + 63) / 64;
    for (int64_t k = 0; k < n; ++k) {
#pragma GCC unroll 8
        for (int i = 0; i < lines; ++i)
            fetch.step();
        const auto factor = [&](int r) {
            return Products::factor(a + r * a_stride + k * Products::kFactors);
        };
        // The shorter side of the block is held in registers; the longer side is loaded one element
        // at a time.
        if constexpr (rows < vectors) {
            decltype(factor(0)) factors[rows];
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
                factors[r] = factor(r);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) {
                const auto column = Products::column(from[v], k, b_stride);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r)
                    sum[r][v] = Products::add(sum[r][v], factors[r], column);
            }
        } else {
            decltype(Products::column(from[0], k, b_stride)) columns[vectors];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v)
                columns[v] = Products::column(from[v], k, b_stride);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const auto one = factor(r);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v)
                    sum[r][v] = Products::add(sum[r][v], one, columns[v]);
            }
        }
    }
    // Keeps the compiler from holding all addresses of c in vector registers during the product.
    __asm__("" : "+r"(c));
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += c_stride) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            store(c + v * kLanes, sum[r][v]);
    }
    prefetcher = fetch;
}

template <int rows, class Products, class Fetch>
void multiply_rows(const typename Products::Factor* a, int64_t a_stride,
                   const typename Products::Stored* const* b, int vectors, int64_t b_stride,
                   int64_t n, float* c, int64_t c_stride, bool accumulate, Fetch& prefetcher) {
    constexpr int wide = wide_vectors(rows);
    int v = 0;
    const auto block = [&]<int count>(Index<count>) {
        const auto with = [&](auto& fetch) {
            multiply_block<rows, count, Products>(a, a_stride, b + v, b_stride, n, c + v * kLanes,
                                                  c_stride, accumulate, fetch);
        };
        NoPrefetch none;
        prefetcher.takes_turn() ? with(prefetcher) : with(none);
        v += count;
    };
    while (v + wide <= vectors)
        block(Index<wide>{});
    while (wide > 2 && v + 2 <= vectors)
        block(Index<2>{});
    while (v < vectors)
        block(Index<1>{});
}

// Calls multiply_rows for 1 <= rows <= kMaxRows.
template <class Products, class Fetch>
PENSTOCK_INLINE void multiply(int rows, const typename Products::Factor* a, int64_t a_stride,
                              const typename Products::Stored* const* b, int vectors,
                              int64_t b_stride, int64_t n, float* c, int64_t c_stride,
                              bool accumulate, Fetch& prefetcher) {
    with_count<kMaxRows>(rows, [&](auto count) {
        multiply_rows<count.value, Products>(a, a_stride, b, vectors, b_stride, n, c, c_stride,
                                             accumulate, prefetcher);
    });
}

PENSTOCK_INLINE F32 exp2_below(F32 x, F32 highest) {
    // equal also catches two -inf, whose weight is 1.
    return select(equal(x, highest), broadcast(1.0f), exp2_nonpositive(x - highest));
}
PENSTOCK_INLINE float exp2_below(float x, float highest) {
    if (x == highest)
        return 1.0f; // also if both are -inf
    float result[kLanes];
    store(result, exp2_nonpositive(broadcast(x) - broadcast(highest)));
    return result[0];
}

// The scores of a few rows with a tile of keys, and the rows' softmax state within the span, in
// units of log2. Row r sees keys [from[r], to[r]) of the tile.
template <class Weight>
struct Scored {
    int count;
    int from[kMaxRows], to[kMaxRows];
    float* scores;   // [count][kTile]; modified
    Weight* weights; // [count][kTile]; may be the memory of `scores`
    float* highest;  // [count]
    float* mass;     // [count][kLanes]
    float* sums;     // [count][vectors]: the weighted sums of values so far
    int vectors;

    bool sees_all(int r) const { return from[r] == 0 && to[r] == kTile; }

    // Calls f(v) for the vectors of keys of which row r sees at least one key.
    template <class Function>
    void for_seen_vectors(int r, const Function& f) const {
        if (sees_all(r)) {
#pragma GCC unroll 8
            for (int v = 0; v < kTileVectors; ++v)
                f(v);
            return;
        }
        for (int v = from[r] / kLanes; v * kLanes < to[r]; ++v)
            f(v);
    }

    // Multiplies the sums of row r by `factor`, after its highest score has grown.
    void shrink(int r, float factor) const {
        if (factor == 1.0f)
            return;
        for (int v = 0; v < vectors; ++v) {
            float* at = sums + (r * vectors + v) * kLanes;
            store(at, load(at) * broadcast(factor));
        }
    }
};

// Returns, per lane, the highest score that row r sees; sets the scores of hidden keys to -inf.
template <class Weight>
PENSTOCK_INLINE F32 top_of(const Scored<Weight>& tile, int r) {
    const F32 hidden = broadcast(-__builtin_inff());
    const int begin = tile.from[r], end = tile.to[r];
    F32 top = hidden;
    if (begin >= end)
        return top;
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) {
        float* scores = tile.scores + r * kTile + v * kLanes;
        F32 score = load(scores);
        if (!tile.sees_all(r)) {
            score = select(first(begin - v * kLanes), hidden, score);
            score = select(first(end - v * kLanes), score, hidden);
            store(scores, score);
        }
        top = max(top, score);
    }
    return top;
}

// Updates the rows' maxima and calls weigh_row(r, reference, shrink) for each row that sees a key.
// The row's weights are 2^(score - reference), and its previous sums must be multiplied by
// `shrink`. The maxima of all rows are computed together, so that their dependency chains hide each
// other's latency.
template <class Weight, class WeighRow>
PENSTOCK_INLINE void weigh_seen(const Scored<Weight>& tile, const WeighRow& weigh_row) {
    static_assert(kMaxRows <= 8 && kMaxRows <= kLanes);
    const F32 hidden = broadcast(-__builtin_inff());
    F32 tops[8] = {hidden, hidden, hidden, hidden, hidden, hidden, hidden, hidden};
#pragma GCC unroll 8
    for (int r = 0; r < kMaxRows; ++r)
        tops[r] = r < tile.count ? top_of(tile, r) : hidden;
    const F32 before = load(tile.highest);
    const F32 highest = max(reduce_max_each(tops), before);
    store(tile.highest, select(first(tile.count), highest, before));
    float shrinks[kLanes], references[kLanes];
    store(shrinks, exp2_below(before, highest));
    // If all scores so far are -inf, any finite reference makes all weights 0.
    store(references, select(equal(highest, hidden), broadcast(0.0f), highest));
    for (int r = 0; r < tile.count; ++r) {
        if (tile.from[r] < tile.to[r])
            weigh_row(r, references[r], shrinks[r]);
    }
}

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
