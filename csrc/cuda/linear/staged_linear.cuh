// Linear layer for up to 128 tokens: weights and tokens pass through a ring of stages in shared
// memory.
//
// A tile is 128 rows of the weight. It is divided into stages of 128 bytes per row: 64 columns of
// bfloat16, or the 128 columns of 8-bit floats that share a scale. The stages of all tiles, in
// order, are divided into equal shares, one per block (stream-K). A block copies its next stages
// while it multiplies the current one, also from one tile to the next. As in stream_linear.cuh, the
// order of k inside a product is free: lane t of a row takes 16 adjacent bytes of every 64.
//
// If the stages of a tile belong to several blocks, each block writes its sums, and the last block
// adds them in the order of the blocks. Shares depend only on the weight and on the number of
// blocks, so that a token's sum depends neither on the rest of the batch nor on kTokens.
#pragma once

#include "cuda/linear/products.cuh"

namespace penstock::cuda {

constexpr int kRowsOfStaged = 128;
constexpr int kThreadsOfStaged = 256;
constexpr int kWarpsOfStaged = kThreadsOfStaged / kWarp;
constexpr int kBytesOfStage = 128; // per row of the weight
constexpr int kUnit = 16;          // bytes per copy

struct StagedLinear {
    void* out; // [tokens, rows]
    const Bf16* x;
    const unsigned char* weight; // [rows, width], bfloat16 or codes
    const float* scale;          // see `StreamFloat8::scale`
    const float* bias;           // [rows] or null
    float* parts;                // [blocks, 2, 128 * kTokens]
    int32_t* arrived;            // [tiles], zero before and after
    int tokens, rows, width;
    int scale_rows, scale_stride;
    bool to_float;
};

template <bool kFloat8, int kTokens>
struct Staging {
    static constexpr int kColumnsOfStage = kFloat8 ? 128 : 64;
    static constexpr int kTokenUnits = kColumnsOfStage * 2 / kUnit; // per token in a stage
    static constexpr int kWeightBytes = kRowsOfStaged * kBytesOfStage;
    static constexpr int kBytes = kWeightBytes + kTokens * kTokenUnits * kUnit;
    // Two blocks run per multiprocessor, or one if stages are too large.
    static constexpr int kBlocks = kFloat8 && kTokens > 64 ? 1 : 2;
    static constexpr int kStages = kBlocks == 1 ? 4 : (104 << 10) / kBytes;
    static constexpr int kSharedBytes = kStages * kBytes;
    // A warp's share of a tile has kRowTiles times 16 rows and kTiles times 8 tokens.
    static constexpr int kTokenGroups = kTokens > 32 ? 2 : 1;
    static constexpr int kRowTiles = kTokenGroups;
    static constexpr int kTiles = kTokens / kTokenGroups / kColumns;
    static constexpr int kTokenCopies =
        (kTokens * kTokenUnits + kThreadsOfStaged - 1) / kThreadsOfStaged;
    static_assert(kStages >= 3);
};

// Returns the position in a stage of 16 bytes of a row. Rows that are read together use different
// banks.
__device__ __forceinline__ int weight_place(int row, int unit) {
    return row * (kBytesOfStage / kUnit) + (unit ^ (row % 2) * 4);
}
template <bool kFloat8>
__device__ __forceinline__ int token_place(int token, int unit) {
    if (kFloat8) // 32 adjacent bytes per lane
        return token * 16 + (unit ^ token % 2);
    return token * 8 + (unit ^ (token % 2) * 4);
}

// One stage: stage `index` of tile `tile`.
struct Stage {
    int tile, index;

    __device__ __forceinline__ Stage next(int stages) const {
        return index + 1 == stages ? Stage{tile + 1, 0} : Stage{tile, index + 1};
    }
};

// The stages of a block: begin to end - 1, counted over all tiles.
struct Share {
    int stages; // per tile
    int64_t total, begin, end;

    __device__ __forceinline__ Share(int tiles, int stages_)
        : stages(stages_), total(static_cast<int64_t>(tiles) * stages_),
          begin(total * blockIdx.x / gridDim.x), end(total * (blockIdx.x + 1) / gridDim.x) {}

    __device__ __forceinline__ Stage first() const {
        return {static_cast<int>(begin / stages), static_cast<int>(begin % stages)};
    }
    // Returns the block whose share contains a stage.
    __device__ __forceinline__ int block_of(int64_t stage) const {
        return static_cast<int>(((stage + 1) * gridDim.x - 1) / total);
    }
};

// The sources and destinations of the copies of one thread.
template <bool kFloat8, int kTokens>
struct StageCopies {
    using Form = Staging<kFloat8, kTokens>;
    static constexpr int kRowsAtOnce = kThreadsOfStaged / (kBytesOfStage / kUnit);
    static constexpr int kWeightCopies = kRowsOfStaged / kRowsAtOnce;

    int tile = -1;
    const unsigned char* weight[kWeightCopies];

    __device__ __forceinline__ void copy_weight(const StagedLinear& call, Words4* slot,
                                                Stage stage) {
        const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
        if (stage.tile != tile) {
            tile = stage.tile;
            const int64_t row_bytes = static_cast<int64_t>(call.width) * (kFloat8 ? 1 : 2);
#pragma unroll
            for (int i = 0; i < kWeightCopies; ++i) {
                // Rows past the end are read from the last row, and their results are not stored.
                const int from = min(tile * kRowsOfStaged + row + i * kRowsAtOnce, call.rows - 1);
                weight[i] = call.weight + from * row_bytes + unit * kUnit;
            }
        }
        const int64_t from = static_cast<int64_t>(stage.index) * kBytesOfStage;
        Words4* const to = slot + weight_place(row, unit);
#pragma unroll
        for (int i = 0; i < kWeightCopies; ++i)
            copy_async(to + i * kRowsAtOnce * 8, weight[i] + from, true);
    }

    // Returns the source of the thread's copy `i` of tokens, or null if there is no such copy; sets
    // `to` to its destination.
    __device__ __forceinline__ const Bf16* token(const StagedLinear& call, int stage, int i,
                                                 int& to) const {
        const int index = threadIdx.x + i * kThreadsOfStaged;
        const int token = index / Form::kTokenUnits, unit = index % Form::kTokenUnits;
        to = kRowsOfStaged * 8 + token_place<kFloat8>(token, unit);
        if (token >= call.tokens || token >= kTokens)
            return nullptr;
        return call.x + static_cast<int64_t>(token) * call.width +
               static_cast<int64_t>(stage) * Form::kColumnsOfStage + unit * (kUnit / 2);
    }

    __device__ __forceinline__ void copy_tokens(const StagedLinear& call, Words4* slot,
                                                Stage stage) const {
#pragma unroll
        for (int i = 0; i < Form::kTokenCopies; ++i) {
            int to = 0;
            if (const Bf16* const from = token(call, stage.index, i, to))
                copy_async(slot + to, from, true);
        }
    }

    // Copies the tokens of the first stages synchronously.
    __device__ __forceinline__ void fetch_tokens(const StagedLinear& call, Words4* ring,
                                                 const Share& share) const {
        constexpr int kSlot = Form::kBytes / kUnit;
        Words4 fetched[Form::kStages - 1][Form::kTokenCopies];
        Stage stage = share.first();
#pragma unroll
        for (int s = 0; s < Form::kStages - 1; ++s, stage = stage.next(share.stages)) {
#pragma unroll
            for (int i = 0; i < Form::kTokenCopies; ++i) {
                int to = 0;
                const Bf16* const from = token(call, stage.index, i, to);
                const bool wanted = from != nullptr && share.begin + s < share.end;
                fetched[s][i] = wanted ? load16(from) : Words4{};
            }
        }
#pragma unroll
        for (int s = 0; s < Form::kStages - 1; ++s) {
#pragma unroll
            for (int i = 0; i < Form::kTokenCopies; ++i) {
                int to = 0;
                if (token(call, 0, i, to) != nullptr)
                    ring[s * kSlot + to] = fetched[s][i];
            }
        }
    }
};

// Positions of a lane's 16-byte pieces in a stage: `weight` for the first row of its share, in each
// half of the stage, and `token` for its first token. Further rows and tokens follow at multiples
// of eight.
template <bool kFloat8>
struct LanePlaces {
    int weight[2], token[2];

    __device__ __forceinline__ LanePlaces(int row, int token_) {
        const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weight[i] = weight_place(row + g, i * 4 + t);
            token[i] = kRowsOfStaged * 8 +
                       token_place<kFloat8>(token_ + g, kFloat8 ? 2 * t + i : i * 4 + t);
        }
    }
};

// Adds the products of a stage to `sums`, for the warp's rows and tokens.
template <bool kFloat8, int kRowTiles, int kTiles>
__device__ __forceinline__ void multiply_stage(float (&sums)[kRowTiles * kTiles * 4],
                                               const Words4* slot,
                                               const LanePlaces<kFloat8>& places) {
    constexpr int kAtOnce = kTiles > 4 ? 4 : kTiles; // limited by registers
    constexpr int kTokenPitch = kFloat8 ? 16 : 8;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const Words4* const weights = slot + places.weight[c];
        Words4 upper[kRowTiles], lower[kRowTiles];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
            upper[r] = weights[r * 16 * 8];
            lower[r] = weights[(r * 16 + 8) * 8];
        }
#pragma unroll
        for (int half = 0; half < (kFloat8 ? 2 : 1); ++half) {
            const Words4* const tokens_at =
                kFloat8 ? slot + places.token[half] + c * 8 : slot + places.token[c];
#pragma unroll
            for (int tile = 0; tile < kTiles; tile += kAtOnce) {
                Words4 tokens[kAtOnce];
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
                    tokens[i] = tokens_at[(tile + i) * kColumns * kTokenPitch];
#pragma unroll
                for (int r = 0; r < kRowTiles; ++r) {
                    auto& of_tiles =
                        reinterpret_cast<float (&)[kAtOnce][4]>(sums[(r * kTiles + tile) * 4]);
                    multiply_chunk<kAtOnce>(
                        of_tiles, kFloat8 ? widen_half(upper[r], half) : upper[r],
                        kFloat8 ? widen_half(lower[r], half) : lower[r], tokens);
                }
            }
        }
    }
}

// The first row and token of a warp in a tile; `row_of` and `token_of` return the row and token of
// sum `i` of a thread.
template <bool kFloat8, int kTokens>
struct WarpShare {
    using Form = Staging<kFloat8, kTokens>;
    int row, token;

    __device__ __forceinline__ WarpShare()
        : row(threadIdx.x / kWarp / Form::kTokenGroups * Form::kRowTiles * 16),
          token(threadIdx.x / kWarp % Form::kTokenGroups * Form::kTiles * kColumns) {}

    __device__ __forceinline__ int row_of(int i) const {
        return row + i / (Form::kTiles * 4) * 16 + i % 4 / 2 * 8 + threadIdx.x % kWarp / 4;
    }
    __device__ __forceinline__ int token_of(int i) const {
        return token + i / 4 % Form::kTiles * kColumns + threadIdx.x % 4 * 2 + i % 2;
    }
};

// Writes this block's sums of a tile that several blocks share. In the last of these blocks,
// replaces `sums` by the sums of all of them, added in order, and returns true.
template <int kSums>
__device__ __forceinline__ bool add_parts(const StagedLinear& call, const Share& share, int tile,
                                          float (&sums)[kSums]) {
    __shared__ bool is_last;
    const int64_t begin = static_cast<int64_t>(tile) * share.stages;
    const int first = share.block_of(begin), last = share.block_of(begin + share.stages - 1);
    constexpr int kPart = kSums * kThreadsOfStaged;
    // A block uses its second part if the tile starts in its share.
    const auto part_of = [&](int block) {
        return call.parts + (2 * static_cast<int64_t>(block) + (block == first)) * kPart +
               threadIdx.x * 4;
    };
    float* const own = part_of(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
        store_floats(own + i * kThreadsOfStaged, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
    __syncthreads(); // all threads have written their part before the block is counted
    if (threadIdx.x == 0)
        is_last = count_in(call.arrived + tile) == last - first;
    __syncthreads();
    if (!is_last)
        return false;
#pragma unroll
    for (int i = 0; i < kSums; ++i)
        sums[i] = 0.0f;
#pragma unroll 1
    for (int block = first; block <= last; ++block) {
        const float* const part = part_of(block);
        Words4 found[kSums / 4];
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i)
            found[i] = load16_shared_cache(part + i * 4 * kThreadsOfStaged);
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            sums[i] += as_float(found[i / 4].word[i % 4]);
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
    constexpr int kSums = kRowTiles * kTiles * 4;
#ifdef PENSTOCK_EMULATED
    Words4* const ring = reinterpret_cast<Words4*>(emulated::dynamic_shared);
#else
    extern __shared__ Words4 ring[];
#endif
    const int tiles = (call.rows + kRowsOfStaged - 1) / kRowsOfStaged;
    const Share share(tiles, call.width / Form::kColumnsOfStage);
    const WarpShare<kFloat8, kTokens> warp;
    const LanePlaces<kFloat8> places(warp.row, warp.token);

    let_later_start();
    StageCopies<kFloat8, kTokens> copies;
    Stage copied = share.first();
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s, copied = copied.next(share.stages)) {
        if (share.begin + s < share.end)
            copies.copy_weight(call, ring + s * kSlot, copied);
        commit_copies();
    }
    wait_for_earlier(); // no kernel writes weights
    copies.fetch_tokens(call, ring, share);

    // Scales of the rows of the next stage, and their addresses.
    const int lane_row = threadIdx.x % kWarp / 4;
    float next_factors[kRowTiles * 2] = {};
    const float* factors_at[kRowTiles * 2] = {};
    const auto read_factors = [&](Stage stage, bool wanted) {
        if (stage.index == 0 || factors_at[0] == nullptr) {
#pragma unroll
            for (int i = 0; i < kRowTiles * 2; ++i) {
                const int row = stage.tile * kRowsOfStaged + warp.row + i * 8 + lane_row;
                factors_at[i] = call.scale + min(row, call.rows - 1) / call.scale_rows +
                                static_cast<int64_t>(stage.index) * call.scale_stride;
            }
        }
#pragma unroll
        for (int i = 0; i < kRowTiles * 2; ++i) {
            stream_float_where(wanted, next_factors[i], factors_at[i]);
            factors_at[i] += call.scale_stride;
        }
    };
    Stage stage = share.first();
    if (kFloat8)
        read_factors(stage, share.begin < share.end);
    float sums[kSums] = {};
    const int count = static_cast<int>(share.end - share.begin);
    bool has_start = stage.index == 0; // whether the share includes the start of the tile
    int slot = 0;
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
        wait_for_copies<kStages - 2>();
        // all copies of the stage have arrived, and no thread reads the previous one
        __syncthreads();
        if (s + kStages - 1 < count) {
            Words4* const to = ring + (slot == 0 ? kStages - 1 : slot - 1) * kSlot;
            copies.copy_weight(call, to, copied);
            copies.copy_tokens(call, to, copied);
            copied = copied.next(share.stages);
        }
        commit_copies();
        const Stage next = stage.next(share.stages);
        const Words4* const held = ring + slot * kSlot;
        slot = slot + 1 == kStages ? 0 : slot + 1;
        if constexpr (kFloat8) {
            float factors[kRowTiles * 2];
#pragma unroll
            for (int i = 0; i < kRowTiles * 2; ++i)
                factors[i] = next_factors[i];
            read_factors(next, s + 1 < count);
            float part[kSums] = {};
            multiply_stage<kFloat8, kRowTiles, kTiles>(part, held, places);
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                sums[i] += part[i] * factors[i / (kTiles * 4) * 2 + i % 4 / 2];
        } else {
            multiply_stage<kFloat8, kRowTiles, kTiles>(sums, held, places);
        }
        if (next.index != 0 && s + 1 < count) {
            stage = next;
            continue;
        }
        const bool whole = has_start && next.index == 0;
        if (whole || add_parts(call, share, stage.tile, sums)) {
#pragma unroll
            for (int i = 0; i < kSums; ++i) {
                const int row = stage.tile * kRowsOfStaged + warp.row_of(i);
                const int token = warp.token_of(i);
                if (token >= call.tokens || row >= call.rows)
                    continue;
                const float bias = call.bias == nullptr ? 0.0f : call.bias[row];
                store_result(call.out, static_cast<int64_t>(token) * call.rows + row,
                             sums[i] + bias, call.to_float);
            }
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            sums[i] = 0.0f;
        has_start = true;
        stage = next;
    }
    wait_for_copies<0>();
}

} // namespace penstock::cuda
