// Passes over one row of logits. Included by sampling.inl.h.
//
// A row is processed in chunks of 64 logits. The first pass keeps the maximum of each chunk, so
// that later passes skip the chunks below their threshold, which are most chunks.
#pragma once

#include "cpu/sampling/sampling_select.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

constexpr int64_t kChunk = 64;
constexpr float kInfinity = __builtin_inff();
constexpr float kLog2e = 1.44269504088896341f;

PENSTOCK_INLINE int64_t chunks_of(int64_t vocabulary) {
    return (vocabulary + kChunk - 1) / kChunk;
}

// One row, with the buffers of the thread that processes it.
struct Row {
    const float* logits;
    int64_t vocabulary;
    float* maxima;         // [chunks]
    float* weights;        // [V]
    double* sums;          // [chunks]
    Candidate* candidates; // [V]

    int64_t chunks() const { return chunks_of(vocabulary); }
};

PENSTOCK_INLINE size_t row_bytes(int64_t vocabulary) {
    const int64_t chunks = chunks_of(vocabulary);
    return static_cast<size_t>(chunks) * (sizeof(float) + sizeof(double)) +
           static_cast<size_t>(vocabulary) * (sizeof(float) + sizeof(Candidate)) + 64;
}

PENSTOCK_INLINE Row row_of(const float* logits, int64_t vocabulary, void* memory) {
    const int64_t chunks = chunks_of(vocabulary);
    Row row{logits, vocabulary, nullptr, nullptr, nullptr, nullptr};
    row.sums = static_cast<double*>(memory);
    row.candidates = reinterpret_cast<Candidate*>(row.sums + chunks);
    row.maxima = reinterpret_cast<float*>(row.candidates + vocabulary);
    row.weights = row.maxima + chunks;
    return row;
}

// Calls visit(i, n, x) for the vectors of a chunk: x has n lanes from id i on, and -inf after them.
template <class Visit>
PENSTOCK_INLINE void each_vector(const Row& row, int64_t chunk, Visit visit) {
    const int64_t begin = chunk * kChunk;
    if (begin + kChunk <= row.vocabulary) {
#pragma GCC unroll 8
        for (int i = 0; i < kChunk; i += kLanes)
            visit(begin + i, kLanes, load(row.logits + begin + i));
        return;
    }
    for (int64_t i = begin; i < row.vocabulary; i += kLanes) {
        const int n = lanes_from(i, row.vocabulary);
        visit(i, n, select(first(n), load_lanes(row.logits + i, n), broadcast(-kInfinity)));
    }
}

// Fills the maxima and returns the highest logit, or -inf if the row contains NaN or +inf.
PENSTOCK_INLINE float scan(const Row& row) {
    float highest = -kInfinity;
    Mask usable = first(kLanes);
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        F32 top = broadcast(-kInfinity);
        each_vector(row, chunk, [&](int64_t, int, F32 x) {
            usable = usable & less(x, broadcast(kInfinity));
            top = max(top, x);
        });
        row.maxima[chunk] = reduce_max(top);
        highest = row.maxima[chunk] > highest ? row.maxima[chunk] : highest;
    }
    return any(!usable) ? -kInfinity : highest;
}

// Returns the lowest id of the highest logit, which is finite.
PENSTOCK_INLINE int32_t find(const Row& row, float highest) {
    int64_t chunk = 0;
    while (row.maxima[chunk] != highest)
        ++chunk;
    int64_t id = chunk * kChunk;
    while (row.logits[id] != highest)
        ++id;
    return static_cast<int32_t>(id);
}

// Writes the candidates with low <= logit < high to `out`, in ascending order of ids, and returns
// their number. If there are more than `limit`, stops and returns limit + 1.
PENSTOCK_INLINE int64_t gather(const Row& row, float low, float high, Candidate* out,
                               int64_t limit) {
    int64_t count = 0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        if (row.maxima[chunk] < low)
            continue;
        bool full = false;
        each_vector(row, chunk, [&](int64_t i, int n, F32 x) {
            const Mask inside = less_equal(broadcast(low), x) & less(x, broadcast(high)) & first(n);
            for (uint32_t left = bits(inside); left != 0; left &= left - 1) {
                if (count == limit) {
                    full = true;
                    return;
                }
                const int64_t id = i + __builtin_ctz(left);
                out[count++] = {row.logits[id], static_cast<int32_t>(id)};
            }
        });
        if (full)
            return limit + 1;
    }
    return count;
}

// Turns logits into weights: 2^((x - highest) * slope) with slope = log2(e) / temperature. A weight
// is the token's probability divided by the best token's.
struct Scale {
    float highest, slope;

    F32 weight(F32 x) const {
        return exp2_nonpositive((x - broadcast(highest)) * broadcast(slope));
    }
    float weight(float x) const {
        float lanes[kLanes];
        store(lanes, weight(broadcast(x)));
        return lanes[0];
    }
    // Returns the logit whose weight is 2^log2_weight.
    float logit(float log2_weight) const { return highest + log2_weight / slope; }
};

// Computes the weights and, for each chunk, the sum of the weights that are at least `least`.
// Returns the total of these sums.
PENSTOCK_INLINE double weigh(const Row& row, Scale scale, float least) {
    const float vanishing = scale.logit(-127.0f);
    double total = 0.0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        F32 sum = broadcast(0.0f);
        if (row.maxima[chunk] >= vanishing) {
            each_vector(row, chunk, [&](int64_t i, int n, F32 x) {
                const F32 weight = scale.weight(x);
                store_lanes(row.weights + i, weight, n);
                sum = sum + select(less(weight, broadcast(least)), broadcast(0.0f), weight);
            });
        }
        row.sums[chunk] = static_cast<double>(reduce_add(sum));
        total += row.sums[chunk];
    }
    return total;
}

// Returns the sum of all weights, without storing the weights.
PENSTOCK_INLINE double mass_of(const Row& row, Scale scale) {
    const float vanishing = scale.logit(-127.0f);
    double total = 0.0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        if (row.maxima[chunk] < vanishing)
            continue;
        F32 sum = broadcast(0.0f);
        each_vector(row, chunk, [&](int64_t, int, F32 x) { sum = sum + scale.weight(x); });
        total += static_cast<double>(reduce_add(sum));
    }
    return total;
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
