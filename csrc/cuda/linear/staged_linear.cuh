// A product of up to 128 rows: weights and tokens go through a ring in the block's memory.
//
// A block has 128 rows of the weight and a part of the width, which it takes in stages of 128 bytes
// a row: 64 columns of bfloat16, or the 128 columns of 8-bit floats that share a scale. The copies
// of the next stages are under way while one is multiplied. As in stream_linear.cuh the order of k
// inside a product is free: lane t of a row takes 16 neighbouring bytes of each 64.
//
// If a tile of rows has several parts (`splits`), each block writes its sums, and the last one adds
// them up in the order of the parts. The parts depend on the weight alone, so a token's sum depends
// on nothing else in the batch, nor on which kTokens serves.
#pragma once

#include "cuda/linear/products.cuh"

namespace penstock::cuda {

constexpr int kRowsOfStaged = 128;
constexpr int kThreadsOfStaged = 256;
constexpr int kWarpsOfStaged = kThreadsOfStaged / kWarp;
constexpr int kBytesOfStage = 128; // of a row of the weight
constexpr int kUnit = 16;          // bytes of one copy

struct StagedLinear {
    void* out; // [tokens, rows]
    const Bf16* x;
    const unsigned char* weight; // [rows, width], bfloat16 or codes
    const float* scale;          // see StreamFloat8
    const float* bias;           // [rows] or null
    float* parts;                // [splits, tiles, 128 * kTokens], unless there is one split
    int32_t* arrived;            // [tiles], zero before and after
    int tokens, rows, width;
    int scale_rows, scale_stride;
    int splits;
    bool to_float;
};

template <bool kFloat8, int kTokens>
struct Staging {
    static constexpr int kColumnsOfStage = kFloat8 ? 128 : 64;
    static constexpr int kTokenUnits = kColumnsOfStage * 2 / kUnit; // of a token in a stage
    static constexpr int kWeightBytes = kRowsOfStaged * kBytesOfStage;
    static constexpr int kBytes = kWeightBytes + kTokens * kTokenUnits * kUnit;
    // Two blocks a multiprocessor, or one where stages are too large.
    static constexpr int kBlocks = kFloat8 && kTokens > 64 ? 1 : 2;
    static constexpr int kStages = kBlocks == 1 ? 4 : (104 << 10) / kBytes;
    static constexpr int kSharedBytes = kStages * kBytes;
    // A warp's share of a tile: rows in sixteens, tokens in eights.
    static constexpr int kTokenGroups = kTokens > 32 ? 2 : 1;
    static constexpr int kRowTiles = kTokenGroups;
    static constexpr int kTiles = kTokens / kTokenGroups / kColumns;
    static constexpr int kTokenCopies =
        (kTokens * kTokenUnits + kThreadsOfStaged - 1) / kThreadsOfStaged;
    // Of a token's sums in the block's memory, so that neither writes nor reads conflict.
    static constexpr int kPitch = kRowsOfStaged + 4;
    static_assert(kStages >= 3 && kTokens * kPitch * 4 <= kSharedBytes);
};

// Where 16 bytes of a row lie in a stage: rows that are read together lie in different banks.
__device__ __forceinline__ int weight_place(int row, int unit) {
    return row * (kBytesOfStage / kUnit) + (unit ^ (row % 2) * 4);
}
template <bool kFloat8>
__device__ __forceinline__ int token_place(int token, int unit) {
    if (kFloat8) // 32 neighbouring bytes a lane
        return token * 16 + (unit ^ token % 2);
    return token * 8 + (unit ^ (token % 2) * 4);
}

// What a thread copies, and where to.
template <bool kFloat8, int kTokens>
struct StageCopies {
    using Form = Staging<kFloat8, kTokens>;
    static constexpr int kRowsAtOnce = kThreadsOfStaged / (kBytesOfStage / kUnit);
    static constexpr int kWeightCopies = kRowsOfStaged / kRowsAtOnce;

    const unsigned char* weight[kWeightCopies];
    int weight_to;

    __device__ __forceinline__ StageCopies(const StagedLinear& call, int first_row) {
        const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
        const int64_t row_bytes = static_cast<int64_t>(call.width) * (kFloat8 ? 1 : 2);
#pragma unroll
        for (int i = 0; i < kWeightCopies; ++i) {
            // Rows past the end are read again elsewhere, and go nowhere.
            const int from = min(first_row + row + i * kRowsAtOnce, call.rows - 1);
            weight[i] = call.weight + from * row_bytes + unit * kUnit;
        }
        weight_to = weight_place(row, unit);
    }

    __device__ __forceinline__ void copy_weight(Words4* slot, int stage) const {
        const int64_t from = static_cast<int64_t>(stage) * kBytesOfStage;
#pragma unroll
        for (int i = 0; i < kWeightCopies; ++i)
            copy_async(slot + weight_to + i * kRowsAtOnce * 8, weight[i] + from, true);
    }

    // The address of the thread's copy `i` of tokens, null if there is none; `to` is its place.
    __device__ __forceinline__ const Bf16* token(const StagedLinear& call, int stage, int i,
                                                 int& to) const {
        const int index = threadIdx.x + i * kThreadsOfStaged;
        const int token = index / Form::kTokenUnits, unit = index % Form::kTokenUnits;
        if (token >= call.tokens || token >= kTokens)
            return nullptr;
        to = kRowsOfStaged * 8 + token_place<kFloat8>(token, unit);
        return call.x + static_cast<int64_t>(token) * call.width +
               static_cast<int64_t>(stage) * Form::kColumnsOfStage + unit * (kUnit / 2);
    }

    __device__ __forceinline__ void copy_tokens(const StagedLinear& call, Words4* slot,
                                                int stage) const {
#pragma unroll
        for (int i = 0; i < Form::kTokenCopies; ++i) {
            int to = 0;
            if (const Bf16* const from = token(call, stage, i, to))
                copy_async(slot + to, from, true);
        }
    }

    // The same at once, for the first stages.
    __device__ __forceinline__ void fetch_tokens(const StagedLinear& call, Words4* ring,
                                                 int first_stage, int count) const {
        constexpr int kSlot = Form::kBytes / kUnit;
        Words4 fetched[(Form::kStages - 1) * Form::kTokenCopies];
#pragma unroll
        for (int j = 0; j < (Form::kStages - 1) * Form::kTokenCopies; ++j) {
            const int s = j / Form::kTokenCopies;
            int to = 0;
            const Bf16* const from =
                s < count ? token(call, first_stage + s, j % Form::kTokenCopies, to) : nullptr;
            fetched[j] = from != nullptr ? load16(from) : Words4{};
        }
#pragma unroll
        for (int j = 0; j < (Form::kStages - 1) * Form::kTokenCopies; ++j) {
            const int s = j / Form::kTokenCopies;
            int to = 0;
            if (s < count && token(call, first_stage + s, j % Form::kTokenCopies, to) != nullptr)
                ring[s * kSlot + to] = fetched[j];
        }
    }
};

// sums += the products of a stage, by the warp's rows from `row` and its tokens from `token` on.
template <bool kFloat8, int kRowTiles, int kTiles>
__device__ __forceinline__ void multiply_stage(float (&sums)[kRowTiles][kTiles][4],
                                               const Words4* slot, int row, int token) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const Words4* const tokens_at = slot + kRowsOfStaged * 8;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        Words4 upper[kRowTiles], lower[kRowTiles];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
            upper[r] = slot[weight_place(row + r * 16 + g, c * 4 + t)];
            lower[r] = slot[weight_place(row + r * 16 + 8 + g, c * 4 + t)];
        }
#pragma unroll
        for (int half = 0; half < (kFloat8 ? 2 : 1); ++half) {
            Words4 tokens[kTiles];
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const int unit = kFloat8 ? c * 8 + 2 * t + half : c * 4 + t;
                tokens[tile] = tokens_at[token_place<kFloat8>(token + tile * kColumns + g, unit)];
            }
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
                multiply_chunk<kTiles>(sums[r], kFloat8 ? widen_half(upper[r], half) : upper[r],
                                       kFloat8 ? widen_half(lower[r], half) : lower[r], tokens);
            }
        }
    }
}

// The sums of a thread, one after another.
template <int kCount>
struct ThreadSums {
    float value[kCount];
};

// Write a block's sums and say whether it is the last one of its tile; then `sums` are those of all
// parts in order.
template <int kCount>
__device__ __forceinline__ bool add_parts(const StagedLinear& call, ThreadSums<kCount>& sums) {
    __shared__ bool is_last;
    const int tile = blockIdx.x / call.splits, split = blockIdx.x % call.splits;
    const int64_t tiles = gridDim.x / call.splits;
    constexpr int kPart = kCount * kThreadsOfStaged;
    float* const own = call.parts + tile * static_cast<int64_t>(kPart) + threadIdx.x * 4;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
        store_floats(own + split * tiles * kPart + i * kThreadsOfStaged, sums.value[i],
                     sums.value[i + 1], sums.value[i + 2], sums.value[i + 3]);
    }
    __threadfence(); // each thread's part is written before one of them says so
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(call.arrived + tile, 1) == call.splits - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last)
        return false;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        sums.value[i] = 0.0f;
#pragma unroll 2
    for (int s = 0; s < call.splits; ++s) {
        Words4 part[kCount / 4];
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i)
            part[i] = load16_shared_cache(own + s * tiles * kPart + i * 4 * kThreadsOfStaged);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            sums.value[i] += as_float(part[i / 4].word[i % 4]);
    }
    if (threadIdx.x == 0)
        call.arrived[tile] = 0;
    return true;
}

template <bool kFloat8, int kTokens>
__global__ void __launch_bounds__(kThreadsOfStaged, Staging<kFloat8, kTokens>::kBlocks)
    staged_linear_kernel(const StagedLinear call) {
    using Form = Staging<kFloat8, kTokens>;
    constexpr int kStages = Form::kStages, kSlot = Form::kBytes / kUnit;
    constexpr int kRowTiles = Form::kRowTiles, kTiles = Form::kTiles;
#ifdef PENSTOCK_EMULATED
    Words4* const ring = reinterpret_cast<Words4*>(emulated::dynamic_shared);
#else
    extern __shared__ Words4 ring[];
#endif
    const int first_row = blockIdx.x / call.splits * kRowsOfStaged;
    const int split = blockIdx.x % call.splits;
    const int all = call.width / Form::kColumnsOfStage;
    const int first = static_cast<int>(static_cast<int64_t>(all) * split / call.splits);
    const int count =
        static_cast<int>(static_cast<int64_t>(all) * (split + 1) / call.splits) - first;
    const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const int row = warp / Form::kTokenGroups * kRowTiles * 16;
    const int token = warp % Form::kTokenGroups * kTiles * kColumns;

    let_later_start();
    const StageCopies<kFloat8, kTokens> copies(call, first_row);
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
        if (s < count)
            copies.copy_weight(ring + s * kSlot, first + s);
        commit_copies();
    }
    wait_for_earlier(); // no kernel writes weights
    copies.fetch_tokens(call, ring, first, count);

    // The scales of the rows of the stage that is multiplied, and of the next.
    float factors[kRowTiles][2] = {}, next_factors[kRowTiles][2] = {};
    const auto read_factors = [&](int s) {
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
            const int of_row = min(first_row + row + i * 8 + g, call.rows - 1);
            const int64_t group = static_cast<int64_t>(first + s) * call.scale_stride;
            stream_float_where(s < count, next_factors[i / 2][i % 2],
                               call.scale + group + of_row / call.scale_rows);
        }
    };
    if (kFloat8)
        read_factors(0);
    float sums[kRowTiles][kTiles][4] = {};
#pragma unroll 1
    for (int s = 0, slot = 0; s < count; ++s) {
        wait_for_copies<kStages - 2>();
        __syncthreads(); // all copies of the stage have come, and nobody reads the one before
        const int ahead = s + kStages - 1;
        if (ahead < count) {
            Words4* const to = ring + (slot == 0 ? kStages - 1 : slot - 1) * kSlot;
            copies.copy_weight(to, first + ahead);
            copies.copy_tokens(call, to, first + ahead);
        }
        commit_copies();
        if (kFloat8) {
#pragma unroll
            for (int i = 0; i < 2 * kRowTiles; ++i)
                factors[i / 2][i % 2] = next_factors[i / 2][i % 2];
            read_factors(s + 1);
            float part[kRowTiles][kTiles][4] = {};
            multiply_stage<kFloat8>(part, ring + slot * kSlot, row, token);
#pragma unroll
            for (int i = 0; i < kRowTiles * kTiles * 4; ++i) {
                const int r = i / (kTiles * 4), tile = i / 4 % kTiles;
                sums[r][tile][i % 4] += part[r][tile][i % 4] * factors[r][i % 4 / 2];
            }
        } else {
            multiply_stage<kFloat8>(sums, ring + slot * kSlot, row, token);
        }
        slot = slot + 1 == kStages ? 0 : slot + 1;
    }

    if (call.splits > 1) {
        ThreadSums<kRowTiles * kTiles * 4> all_sums;
#pragma unroll
        for (int i = 0; i < kRowTiles * kTiles * 4; ++i)
            all_sums.value[i] = sums[i / (kTiles * 4)][i / 4 % kTiles][i % 4];
        if (!add_parts(call, all_sums))
            return;
#pragma unroll
        for (int i = 0; i < kRowTiles * kTiles * 4; ++i)
            sums[i / (kTiles * 4)][i / 4 % kTiles][i % 4] = all_sums.value[i];
    }
    wait_for_copies<0>();
    __syncthreads(); // nobody reads the ring any more
    float* const gathered = reinterpret_cast<float*>(ring);
#pragma unroll
    for (int i = 0; i < kRowTiles * kTiles * 4; ++i) {
        const int r = i / (kTiles * 4), tile = i / 4 % kTiles, j = i % 4;
        gathered[(token + tile * kColumns + 2 * t + j % 2) * Form::kPitch + row + r * 16 + g +
                 8 * (j / 2)] = sums[r][tile][j];
    }
    __syncthreads();
    const int rows = min(kRowsOfStaged, call.rows - first_row);
    for (int index = threadIdx.x; index < kTokens * kRowsOfStaged; index += kThreadsOfStaged) {
        const int of_token = index / kRowsOfStaged, of_row = index % kRowsOfStaged;
        if (of_token >= call.tokens || of_row >= rows)
            continue;
        const float bias = call.bias == nullptr ? 0.0f : call.bias[first_row + of_row];
        store_result(call.out, static_cast<int64_t>(of_token) * call.rows + first_row + of_row,
                     gathered[of_token * Form::kPitch + of_row] + bias, call.to_float);
    }
}

} // namespace penstock::cuda
