// Selects the best tokens of a row without sorting: the shortest prefix, best first, whose count or
// mass reaches a target. Included by sampling.inl.h.
//
// Passes over the row narrow an interval of logits that contains the last logit of the prefix. The
// pivots of a pass come from a sample of the interval, so that each pass leaves a tenth of the
// interval or less for any distribution. When few candidates remain, or many of equal value, the
// end of the prefix is found exactly.
#pragma once

#include "cpu/sampling/sampling_row.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

// The kept tokens of a row: logits above `low`, and logits equal to `low` up to id `last_id`, if
// their weight is at least `least`.
struct Kept {
    float low = -kInfinity;
    int64_t last_id = INT64_MAX;
    float least = 0.0f;

    bool has(float logit, int64_t id, float weight) const {
        return (logit > low || (logit == low && id <= last_id)) && weight >= least;
    }
};

// The two measures of a set of tokens: their number, and their probability mass.
struct CountMeasure {
    F32 of(const Row&, int64_t, int) const { return broadcast(1.0f); }
    float of(const Row&, int64_t) const { return 1.0f; }
};
struct MassMeasure {
    F32 of(const Row& row, int64_t id, int n) const { return load_lanes(row.weights + id, n); }
    float of(const Row& row, int64_t id) const { return row.weights[id]; }
};

constexpr int kPivots = 4;
constexpr int64_t kSample = 128;
constexpr int64_t kFew = 256;
constexpr int kMaxPasses = 12;

// Computes the measure of the logits at or above each pivot. Pivots descend and are finite. Sums
// over eight chunks are float32; their totals are double.
template <class Measure>
PENSTOCK_INLINE void measure_above(const Row& row, Measure measure, const float* pivots,
                                   double* result) {
    F32 sum[kPivots];
    for (int p = 0; p < kPivots; ++p)
        sum[p] = broadcast(0.0f), result[p] = 0.0;
    int pending = 0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        if (row.maxima[chunk] >= pivots[kPivots - 1]) {
            each_vector(row, chunk, [&](int64_t i, int n, F32 x) {
                const F32 size = measure.of(row, i, n);
                for (int p = 0; p < kPivots; ++p) {
                    const Mask below = less(x, broadcast(pivots[p]));
                    sum[p] = sum[p] + select(below, broadcast(0.0f), size);
                }
            });
            ++pending;
        }
        if (pending == 8 || chunk + 1 == row.chunks()) {
            for (int p = 0; p < kPivots; ++p) {
                result[p] += static_cast<double>(reduce_add(sum[p]));
                sum[p] = broadcast(0.0f);
            }
            pending = 0;
        }
    }
}

PENSTOCK_INLINE float next_above(float x) {
    const uint32_t bits = float_bits(x);
    return bits_float(x == 0.0f ? 1u : x > 0.0f ? bits + 1 : bits - 1);
}

// An interval of logits within which a measure reaches its target: the measure of the logits at or
// above `high` is below the target; the measure of the logits at or above `low` is at least the
// target, or `low` includes the whole row.
struct LogitInterval {
    float low, high;
    double above;   // the measure at or above `high`
    double through; // the measure at or above `low`

    bool is_one_value() const { return next_above(low) >= high; }

    // Makes one pass over the row and keeps the part of the interval between two neighbouring
    // pivots. The pivots descend.
    template <class Measure>
    void narrow(const Row& row, Measure measure, const float* pivots, double wanted) {
        double measured[kPivots];
        measure_above(row, measure, pivots, measured);
        for (int p = 0; p < kPivots; ++p) {
            if (!(low < pivots[p] && pivots[p] < high))
                continue;
            if (measured[p] >= wanted) {
                low = pivots[p], through = measured[p];
                return;
            }
            high = pivots[p], above = measured[p];
        }
    }
};

// Writes up to kSample candidates of an interval, from across the row and unordered, to `out`.
// Returns their number.
PENSTOCK_INLINE int64_t sample_interval(const Row& row, const LogitInterval& interval,
                                        Candidate* out) {
    const int64_t chunks = row.chunks(), step = int64_t{2654435761} % chunks; // a prime
    int64_t count = 0, chunk = 0;
    for (int64_t i = 0; i < chunks && count < kSample; ++i) {
        const int64_t begin = chunk * kChunk + i * kLanes % kChunk;
        chunk = chunk + step < chunks ? chunk + step : chunk + step - chunks;
        if (begin >= row.vocabulary)
            continue;
        const int n = lanes_from(begin, row.vocabulary);
        const F32 x = load_lanes(row.logits + begin, n);
        const Mask inside =
            less_equal(broadcast(interval.low), x) & less(x, broadcast(interval.high)) & first(n);
        for (uint32_t left = bits(inside); left != 0; left &= left - 1) {
            const int64_t id = begin + __builtin_ctz(left);
            out[count++] = {row.logits[id], static_cast<int32_t>(id)};
        }
    }
    return count;
}

// Chooses pivots from a sample of the interval: just above the estimated end of the prefix, exactly
// at that logit, and two standard deviations to either side.
template <class Measure>
PENSTOCK_INLINE void choose_pivots(const Row& row, Measure measure, const LogitInterval& interval,
                                   double wanted, float* pivots) {
    Candidate sample[kSample + kLanes];
    const int64_t count = sample_interval(row, interval, sample);
    if (count == 0) {
        for (int p = 0; p < kPivots; ++p) {
            const float part = static_cast<float>(p + 1) / (kPivots + 1);
            pivots[p] = interval.high * (1.0f - part) + interval.low * part;
        }
        return;
    }
    sort_best_first(sample, count);
    double total = 0.0, squares = 0.0;
    for (int64_t i = 0; i < count; ++i) {
        const double size = static_cast<double>(measure.of(row, sample[i].id));
        total += size, squares += size * size;
    }
    const double part = (wanted - interval.above) / (interval.through - interval.above);
    const double place = part < 0.0 ? 0.0 : part < 1.0 ? part : 1.0;
    const double margin =
        2.0 * __builtin_sqrt(squares * place * (1.0 - place)) + total / static_cast<double>(count);
    const auto at = [&](double measured) {
        double sum = 0.0;
        for (int64_t i = 0; i < count; ++i) {
            sum += static_cast<double>(measure.of(row, sample[i].id));
            if (sum >= measured)
                return sample[i].logit;
        }
        return sample[count - 1].logit;
    };
    const float middle = at(place * total), higher = at(place * total - margin);
    pivots[1] = next_above(middle);
    pivots[0] = place * total > margin && higher > pivots[1] ? higher : pivots[1];
    pivots[2] = middle;
    pivots[3] = place * total + margin < total ? at(place * total + margin) : middle;
}

// Returns the id of the n-th token whose logit is `value`, n >= 1, or the last such token if there
// are fewer.
PENSTOCK_INLINE int64_t nth_equal(const Row& row, float value, double n) {
    double seen = 0.0;
    int64_t found = 0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        if (row.maxima[chunk] < value)
            continue;
        bool reached = false;
        each_vector(row, chunk, [&](int64_t i, int count, F32 x) {
            uint32_t left = reached ? 0 : bits(equal(x, broadcast(value)) & first(count));
            const int here = __builtin_popcount(left);
            if (here == 0)
                return;
            reached = seen + here >= n;
            for (int skip = static_cast<int>(n - seen) - 1; reached && skip > 0; --skip)
                left &= left - 1;
            found = i + (reached ? __builtin_ctz(left) : 31 - __builtin_clz(left));
            seen += here;
        });
        if (reached)
            break;
    }
    return found;
}

// Returns the shortest prefix of the row, best first, whose measure reaches `wanted`. The interval
// contains the last token of the prefix.
template <class Measure>
PENSTOCK_INLINE Kept shortest_prefix(const Row& row, Measure measure, LogitInterval interval,
                                     double wanted) {
    int64_t count = 0;
    for (int pass = 0;; ++pass) {
        if (interval.is_one_value()) {
            const int64_t any = nth_equal(row, interval.low, 1.0);
            const double each = static_cast<double>(measure.of(row, any));
            const double ties = __builtin_ceil((wanted - interval.above) / each);
            return {interval.low, ties > 1.0 ? nth_equal(row, interval.low, ties) : any, 0.0f};
        }
        const int64_t limit = pass < kMaxPasses ? kFew : row.vocabulary;
        count = gather(row, interval.low, interval.high, row.candidates, limit);
        if (count <= limit)
            break;
        float pivots[kPivots];
        choose_pivots(row, measure, interval, wanted, pivots);
        interval.narrow(row, measure, pivots, wanted);
    }
    sort_best_first(row.candidates, count);
    double sum = interval.above;
    for (int64_t i = 0; i < count; ++i) {
        const Candidate last = row.candidates[i];
        sum += static_cast<double>(measure.of(row, last.id));
        if (sum >= wanted || i + 1 == count)
            return {last.logit, last.id, 0.0f};
    }
    return {interval.high, INT64_MAX, 0.0f}; // two passes rounded their sums differently
}

} // namespace sampling
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
