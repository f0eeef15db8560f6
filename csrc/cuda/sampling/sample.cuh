// The sampler: one block per row, without sorting the row.
//
// The first pass finds the highest logit of each thread's share of the row. The k-th highest of
// these maxima is not greater than the k-th highest logit of the row; so all logits that reach it
// include the k highest logits, and only a few more. The second pass collects these candidates in
// shared memory, where they are sorted and the filters are applied exactly. For top-p without
// top-k, k is an estimate, which the mass of the candidates verifies. If a row has too many
// candidates, or too little mass in them, the thresholds of its filters are found bit by bit over
// the whole row.
#pragma once

#include "cuda/sampling/philox.h"
#include "cuda/sampling/row.cuh"

namespace penstock::cuda {

struct Sample {
    int32_t* out;        // [S]: token, or -1 if the row cannot be sampled
    const float* logits; // [S, V]
    const float* temperatures;
    const int32_t* top_ks;
    const float* top_ps;
    const float* min_ps;
    const uint64_t* seeds;
    const uint64_t* positions;
    int vocabulary;
    bool wide; // see `Row::wide`
};

constexpr int kMaxCandidates = 2048;
constexpr int kEstimatedTopP = 512; // number of logits that usually hold the mass of top-p

struct Candidates {
    uint32_t of_thread[kSampleThreads];
    // Upper half: key of the logit; lower half: inverted token id, so that lower ids sort higher.
    uint64_t entries[kMaxCandidates];
    int32_t count;
};

__device__ __forceinline__ int token_of(uint64_t entry) {
    return static_cast<int>(~static_cast<uint32_t>(entry));
}

__device__ __forceinline__ float logit_of(uint64_t entry) {
    return from_ordered(static_cast<uint32_t>(entry >> 32));
}

// Finds the highest logit of the row (NaN if any logit is NaN) and returns the lowest token id with
// it. Also sets `of_thread` to the highest key of each thread's share.
__device__ __forceinline__ int find_highest(Row& row, uint32_t (&of_thread)[kSampleThreads],
                                            SampleScratch& scratch) {
    float best = -INFINITY;
    int32_t place = row.vocabulary, broken = 0;
    for_each_logit(row, [&](int token, float logit) {
        broken |= logit != logit;
        if (logit > best || (logit == best && token < place))
            best = logit, place = token;
    });
    of_thread[threadIdx.x] = ordered(best);
    row.highest = block_highest(best, scratch.floats);
    broken = block_highest(broken, scratch.ints);
    if (broken != 0)
        row.highest = NAN;
    return -block_highest(best == row.highest ? -place : -row.vocabulary, scratch.ints);
}

// Collects the logits whose key is at least `floor`, and sums the mass of the row. Returns false if
// there are more than kMaxCandidates.
__device__ __forceinline__ bool collect(Candidates& candidates, const Row& row, uint32_t floor,
                                        float& mass, SampleScratch& scratch) {
    if (threadIdx.x == 0)
        candidates.count = 0;
    __syncthreads();
    float own = 0.0f;
    for_each_logit(row, [&](int token, float logit) {
        const uint32_t key = ordered(logit);
        own += weight_of(row, logit);
        if (key < floor || logit == -INFINITY)
            return;
        const int place = atomicAdd(&candidates.count, 1);
        if (place < kMaxCandidates) {
            const uint32_t lower_first = ~static_cast<uint32_t>(token);
            candidates.entries[place] = static_cast<uint64_t>(key) << 32 | lower_first;
        }
    });
    mass = block_sum_of(own, scratch.floats);
    return candidates.count <= kMaxCandidates;
}

// Sorts `count` entries in descending order, after padding them with zeros to a power of two.
__device__ __forceinline__ void sort_entries(uint64_t* entries, int count) {
    int size = kWarp;
    while (size < count)
        size *= 2;
    for (int i = count + threadIdx.x; i < size; i += kSampleThreads)
        entries[i] = 0;
    sort_descending(entries, size);
}

// Returns how many of the first `count` entries come before the entry with which the cumulative
// mass exceeds `target`, or with `reaches` is at least `target`.
__device__ __forceinline__ int count_below(Candidates& candidates, const Row& row, int count,
                                           float target, bool reaches, SampleScratch& scratch) {
    constexpr int kEntriesPerThread = kMaxCandidates / kSampleThreads;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    float weights[kEntriesPerThread], own = 0.0f;
#pragma unroll
    for (int i = 0; i < kEntriesPerThread; ++i) {
        const int index = threadIdx.x * kEntriesPerThread + i;
        weights[i] = index < count ? weight_of(row, logit_of(candidates.entries[index])) : 0.0f;
        own += weights[i];
    }
    const float upto = warp_scan(own);
    if (lane == kWarp - 1)
        scratch.floats[warp] = upto;
    __syncthreads();
    float sum = upto - own;
    for (int w = 0; w < warp; ++w)
        sum += scratch.floats[w];
    __syncthreads();
    int32_t below = 0;
#pragma unroll
    for (int i = 0; i < kEntriesPerThread; ++i) {
        sum += weights[i];
        const bool stays = reaches ? sum < target : sum <= target;
        below += static_cast<int>(threadIdx.x) * kEntriesPerThread + i < count && stays;
    }
    return block_sum_of(below, scratch.ints);
}

__device__ __forceinline__ float mass_of(const Candidates& candidates, const Row& row, int count,
                                         SampleScratch& scratch) {
    float own = 0.0f;
    for (int i = threadIdx.x; i < count; i += kSampleThreads) {
        own += weight_of(row, logit_of(candidates.entries[i]));
    }
    return block_sum_of(own, scratch.floats);
}

// Samples one of the first `count` entries, in the order of their token ids.
__device__ __forceinline__ int sample_from_candidates(Candidates& candidates, const Row& row,
                                                      int count, float number,
                                                      SampleScratch& scratch) {
    const float target = number * mass_of(candidates, row, count, scratch);
    // After the halves are swapped, the lowest token id is the highest entry.
    for (int i = threadIdx.x; i < count; i += kSampleThreads) {
        const uint64_t entry = candidates.entries[i];
        candidates.entries[i] = entry << 32 | entry >> 32;
    }
    __syncthreads();
    sort_entries(candidates.entries, count);
    for (int i = threadIdx.x; i < count; i += kSampleThreads) {
        const uint64_t entry = candidates.entries[i];
        candidates.entries[i] = entry << 32 | entry >> 32;
    }
    __syncthreads();
    const int below = count_below(candidates, row, count, target, false, scratch);
    return token_of(candidates.entries[min(below, count - 1)]);
}

// Samples a token from the candidates alone; returns -1 if they do not suffice.
__device__ __forceinline__ int sample_from_few(Candidates& candidates, const Row& row, int top_k,
                                               float top_p, float min_p, float number,
                                               SampleScratch& scratch) {
    if (top_k > kSampleThreads)
        return -1;
    sort_descending(candidates.of_thread, kSampleThreads);
    const uint32_t floor = candidates.of_thread[(top_k > 0 ? top_k : kEstimatedTopP) - 1];
    float mass;
    if (!collect(candidates, row, floor, mass, scratch))
        return -1;
    int count = candidates.count;
    sort_entries(candidates.entries, count);
    if (top_k > 0) {
        count = min(count, top_k);
        mass = mass_of(candidates, row, count, scratch);
    }
    if (top_p < 1.0f) {
        const int below = count_below(candidates, row, count, top_p * mass, true, scratch);
        if (below == count && top_k == 0)
            return -1; // the candidates have too little mass
        count = min(count, below + 1);
    }
    int32_t heavy = 0;
    for (int i = threadIdx.x; i < count; i += kSampleThreads) {
        heavy += weight_of(row, logit_of(candidates.entries[i])) >= min_p;
    }
    count = max(block_sum_of(heavy, scratch.ints), 1);
    return sample_from_candidates(candidates, row, count, number, scratch);
}

__global__ void __launch_bounds__(kSampleThreads, 1) sample_kernel(const Sample call) {
    __shared__ Candidates candidates;
    __shared__ SampleScratch scratch;
    let_later_start();
    wait_for_earlier();
    const int index = blockIdx.x;
    Row row{call.logits + static_cast<int64_t>(index) * call.vocabulary, call.vocabulary, call.wide,
            0.0f, call.temperatures[index]};
    const float top_p = call.top_ps[index], min_p = call.min_ps[index];
    int top_k = call.top_ks[index];
    if (top_k >= row.vocabulary || top_k < 0)
        top_k = 0;
    int token = find_highest(row, candidates.of_thread, scratch);
    const bool usable = fabsf(row.highest) < INFINITY; // false for NaN
    if (usable && row.temperature > 0.0f && top_p > 0.0f) {
        const float number = uniform(call.seeds[index], call.positions[index]);
        token = -1;
        if (top_k > 0 || top_p < 1.0f) {
            token = sample_from_few(candidates, row, top_k, top_p, min_p, number, scratch);
        }
        if (token < 0) {
            Kept kept{0, row.vocabulary, min_p};
            if (top_k > 0)
                keep_top_k(kept, row, top_k, scratch);
            if (top_p < 1.0f)
                keep_top_p(kept, row, top_p, scratch);
            token = sample_from_row(row, kept, number, scratch);
        }
    }
    if (threadIdx.x == 0)
        call.out[index] = usable ? token : -1;
}

} // namespace penstock::cuda
