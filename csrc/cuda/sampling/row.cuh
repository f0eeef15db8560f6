// Functions by which one block processes one row of logits: its highest logit, counts and masses
// (sums of weights) over the row, and sampling from the whole row. Logits are compared as unsigned
// integers in the same order (`ordered`).
#pragma once

#include "cuda/sampling/block.cuh"

namespace penstock::cuda {

// Number of pieces of a row. Sampling from the row first finds the piece with the token, by the
// masses of the pieces.
constexpr int kPiecesOfWarp = 16;
constexpr int kPieces = kSampleWarps * kPiecesOfWarp;

struct SampleScratch {
    float floats[kSampleWarps];
    int32_t ints[kSampleWarps];
    float masses[kPieces];
    int32_t ties[kPieces];
    int32_t token;
};

struct Row {
    const float* logits;
    int vocabulary;
    bool wide; // four logits per load: the row is 16-byte aligned
    float highest;
    float temperature;
};

// Calls `use(token, logit)` for the thread's share of the row, by ascending token ids. Four loads,
// each of four logits or of one, are in flight at a time.
template <class Use>
__device__ __forceinline__ void for_each_logit(const Row& row, const Use& use) {
    constexpr int kTogether = 4;
    if (!row.wide) {
#pragma unroll 4
        for (int token = threadIdx.x; token < row.vocabulary; token += kSampleThreads)
            use(token, row.logits[token]);
        return;
    }
    const int loads = row.vocabulary / 4;
#pragma unroll 1
    for (int base = threadIdx.x; base < loads; base += kTogether * kSampleThreads) {
        Words4 words[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            if (base + i * kSampleThreads < loads)
                words[i] = load16(row.logits + 4 * (base + i * kSampleThreads));
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            if (base + i * kSampleThreads >= loads)
                break;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                use(4 * (base + i * kSampleThreads) + j, as_float(words[i].word[j]));
        }
    }
}

// The tokens that the filters keep: logits above `key` and the first `ties` logits equal to `key`,
// if their weight is at least `least`.
struct Kept {
    uint32_t key;
    int32_t ties;
    float least;
};

// Maps float32 to uint32 keys in the same order; -0 and 0 have the same key.
__device__ __forceinline__ uint32_t ordered(float logit) {
    const uint32_t bits = as_bits(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float from_ordered(uint32_t key) {
    return as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Returns exp((logit - highest) / temperature).
__device__ __forceinline__ float weight_of(const Row& row, float logit) {
    return power_of_two((logit - row.highest) / row.temperature * 1.44269504088896f);
}

// Returns the number of logits whose key is at least `key`.
__device__ __forceinline__ int count_from(const Row& row, uint32_t key, SampleScratch& scratch) {
    int32_t count = 0;
    for_each_logit(row, [&](int, float logit) { count += ordered(logit) >= key; });
    return block_sum_of(count, scratch.ints);
}

// Returns the mass of the logits whose key is greater than `key`.
__device__ __forceinline__ float mass_above(const Row& row, uint32_t key, SampleScratch& scratch) {
    float mass = 0.0f;
    for_each_logit(row, [&](int, float logit) {
        mass += ordered(logit) > key ? weight_of(row, logit) : 0.0f;
    });
    return block_sum_of(mass, scratch.floats);
}

// Sets `kept.key` to the top_k-th highest key, whose bits are found one by one from the highest,
// and `kept.ties` to the number of logits equal to it that are kept.
__device__ __forceinline__ void keep_top_k(Kept& kept, const Row& row, int top_k,
                                           SampleScratch& scratch) {
    uint32_t key = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (count_from(row, key | bit, scratch) >= top_k)
            key |= bit;
    }
    kept.key = key;
    kept.ties = top_k - count_from(row, key + 1, scratch);
}

// Sets `kept.key` to the key at which the mass of the highest logits reaches top_p of the mass that
// `kept` keeps, and `kept.ties` to the number of logits equal to it that are kept.
__device__ __forceinline__ void keep_top_p(Kept& kept, const Row& row, float top_p,
                                           SampleScratch& scratch) {
    const float tie = weight_of(row, from_ordered(kept.key));
    const float tied = tie > 0.0f ? tie * static_cast<float>(kept.ties) : 0.0f;
    const float target = top_p * (mass_above(row, kept.key, scratch) + tied);
    uint32_t key = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        const uint32_t candidate = key | bit;
        if (candidate <= kept.key || mass_above(row, candidate - 1, scratch) >= target) {
            key = candidate;
        }
    }
    const float lacking = target - mass_above(row, key, scratch);
    const float weight = weight_of(row, from_ordered(key));
    const float most = static_cast<float>(row.vocabulary);
    const float wanted = fminf(fmaxf(weight > 0.0f ? ceilf(lacking / weight) : 1.0f, 1.0f), most);
    const int32_t ties = static_cast<int32_t>(wanted);
    kept.ties = key == kept.key ? min(ties, kept.ties) : ties;
    kept.key = key;
}

// Returns the weight of a token, zero if the token is not kept. `before`: number of ties with lower
// ids; the call adds the ties among the warp's 32 tokens. All lanes of a warp must call it
// together.
__device__ __forceinline__ float kept_weight(const Row& row, const Kept& kept, int token, int end,
                                             int& before) {
    const float logit = token < end ? row.logits[token] : -INFINITY;
    const uint32_t key = ordered(logit);
    const unsigned equals = __ballot_sync(kWholeWarp, token < end && key == kept.key);
    const int rank = before + __popc(equals & ((1u << threadIdx.x % kWarp) - 1));
    before += __popc(equals);
    const bool keeps = token < end && (key > kept.key || (key == kept.key && rank < kept.ties));
    const float weight = weight_of(row, logit);
    return keeps && weight >= kept.least ? weight : 0.0f;
}

// Sets [begin, end) to the tokens of a piece of the row. Pieces start at multiples of a cache line.
__device__ __forceinline__ void piece_of(const Row& row, int piece, int& begin, int& end) {
    const int lines = (row.vocabulary + kPieces * kWarp - 1) / (kPieces * kWarp);
    begin = min(piece * lines * kWarp, row.vocabulary);
    end = min(begin + lines * kWarp, row.vocabulary);
}

// Counts, for every piece, the logits equal to `key` in all earlier pieces.
__device__ __forceinline__ void count_ties(const Row& row, uint32_t key, SampleScratch& scratch) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    int of_warp = 0;
    for (int i = 0; i < kPiecesOfWarp; ++i) {
        const int piece = warp * kPiecesOfWarp + i;
        int begin, end;
        piece_of(row, piece, begin, end);
        if (lane == 0) {
            scratch.ties[piece] = of_warp;
        }
        for (int base = begin; base < end; base += kWarp) {
            const int token = base + lane;
            const bool equal = token < end && ordered(row.logits[token]) == key;
            of_warp += __popc(__ballot_sync(kWholeWarp, equal));
        }
    }
    if (lane == 0) {
        scratch.ints[warp] = of_warp;
    }
    __syncthreads();
    int lower = 0;
    for (int other = 0; other < warp; ++other) {
        lower += scratch.ints[other];
    }
    if (lane < kPiecesOfWarp) {
        scratch.ties[warp * kPiecesOfWarp + lane] += lower;
    }
    __syncthreads();
}

// Returns the index of the first of `count` masses with which the running sum exceeds `target`, or
// of the last nonzero mass if rounding leaves none. `passed`: the sum before the first mass; the
// call sets it to the sum before the returned index.
__device__ __forceinline__ int find_mass(const float* masses, int count, float target,
                                         float& passed) {
    int chosen = 0;
    float sum = passed;
    for (int i = 0; i < count && sum <= target; ++i) {
        if (masses[i] > 0.0f) {
            chosen = i;
            passed = sum;
        }
        sum += masses[i];
    }
    return chosen;
}

// Samples a token from the masses of warps and pieces, and stores it in `scratch.token`. One warp
// calls this.
__device__ __forceinline__ void sample_from_pieces(const Row& row, const Kept& kept, float number,
                                                   SampleScratch& scratch) {
    const int lane = threadIdx.x % kWarp;
    float total = 0.0f;
    for (int other = 0; other < kSampleWarps; ++other) {
        total += scratch.floats[other];
    }
    const float target = number * total;
    float passed = 0.0f;
    const int first = find_mass(scratch.floats, kSampleWarps, target, passed) * kPiecesOfWarp;
    const int piece = first + find_mass(scratch.masses + first, kPiecesOfWarp, target, passed);
    int begin, end, before = scratch.ties[piece], token = -1, last = 0;
    piece_of(row, piece, begin, end);
    for (int base = begin; base < end && token < 0; base += kWarp) {
        const float weight = kept_weight(row, kept, base + lane, end, before);
        const float reached = passed + warp_scan(weight);
        const unsigned hits = __ballot_sync(kWholeWarp, weight > 0.0f && reached > target);
        const unsigned some = __ballot_sync(kWholeWarp, weight > 0.0f);
        if (hits != 0) {
            token = base + __ffs(hits) - 1;
        }
        if (some != 0) {
            last = base + kWarp - 1 - leading_zeros(some);
        }
        passed += warp_sum(weight);
    }
    if (lane == 0) {
        scratch.token = token >= 0 ? token : last;
    }
}

// Returns the mass of a piece of the row, in every lane. Only correct if the filters keep all ties.
__device__ __forceinline__ float mass_of_piece(const Row& row, float least, int begin, int end) {
    constexpr int kTogether = 8;
    const int lane = threadIdx.x % kWarp;
    float mass = 0.0f;
    for (int base = begin; base < end; base += kTogether * kWarp) {
        float logits[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const int token = base + i * kWarp + lane;
            logits[i] = token < end ? row.logits[token] : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const float weight = weight_of(row, logits[i]);
            mass += weight >= least ? weight : 0.0f;
        }
    }
    return warp_sum(mass);
}

// Returns the first kept token, by ascending id, at which the cumulative mass exceeds `number`
// times the total mass.
__device__ __forceinline__ int sample_from_row(const Row& row, const Kept& kept, float number,
                                               SampleScratch& scratch) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const bool all_ties = kept.key == 0 && kept.ties >= row.vocabulary;
    if (kept.ties < row.vocabulary) {
        count_ties(row, kept.key, scratch);
    } else {
        for (int piece = threadIdx.x; piece < kPieces; piece += kSampleThreads) {
            scratch.ties[piece] = 0;
        }
        __syncthreads();
    }
    float of_warp = 0.0f;
    for (int i = 0; i < kPiecesOfWarp; ++i) {
        const int piece = warp * kPiecesOfWarp + i;
        int begin, end, before = scratch.ties[piece];
        piece_of(row, piece, begin, end);
        float mass = 0.0f;
        if (all_ties) {
            mass = mass_of_piece(row, kept.least, begin, end);
        } else {
            for (int base = begin; base < end; base += kWarp)
                mass += kept_weight(row, kept, base + lane, end, before);
            mass = warp_sum(mass);
        }
        of_warp += mass;
        if (lane == 0) {
            scratch.masses[piece] = mass;
        }
    }
    if (lane == 0) {
        scratch.floats[warp] = of_warp;
    }
    __syncthreads();
    if (warp == 0) {
        sample_from_pieces(row, kept, number, scratch);
    }
    __syncthreads();
    return scratch.token;
}

} // namespace penstock::cuda
