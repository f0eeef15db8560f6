// Linear layer for few tokens: the weights are streamed once, straight into tensor-core fragments.
//
// A block computes 16 rows of the weight; its warps divide the width. Weights are the left operand
// of the product; tokens are its 8 columns. The order of k inside a product is free as long as both
// operands agree: lane t of a row takes 16 adjacent bytes of every 64, which fill its positions in
// two products, so that every load is 16 bytes wide and no data moves between lanes. The sums of
// the warps are added in order; a token's sum depends neither on the rest of the batch nor on the
// number of columns.
#pragma once

#include "cuda/linear/products.cuh"

namespace penstock::cuda {

constexpr int kWarpsOfLinear = 8;
constexpr int kRowsOfLinear = 16;
constexpr int kChunk = 32;         // elements of a row that its four lanes load at a time
constexpr int kChunksInFlight = 4; // 256 bytes of a row are loaded before the first is used

struct StreamLinear {
    void* out; // [tokens, rows], float32 or bfloat16
    const Bf16* x;
    const Bf16* weight;
    const float* bias; // [rows] or null
    int tokens, rows, width;
};

// When the next weights are loaded; see `Setting::kLinearLoads`.
enum class Loads { kBeforeUse, kAfterUse };

template <int kTiles, bool kFloat, Loads kLoads>
__global__ void __launch_bounds__(kWarpsOfLinear* kWarp)
    stream_linear_kernel(const StreamLinear call) {
    __shared__ float of_warp[kWarpsOfLinear][kTiles * kColumns][kRowsOfLinear];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int g = lane / 4, t = lane % 4;
    const int first_row = blockIdx.x * kRowsOfLinear;
    const int64_t width = call.width;
    // Rows past the end are read from the last row, and their results are not stored.
    const int last_row = call.rows - 1;
    const int upper_row = min(first_row + g, last_row),
              lower_row = min(first_row + g + 8, last_row);
    const Bf16* const upper = call.weight + upper_row * width + t * 8;
    const Bf16* const lower = call.weight + lower_row * width + t * 8;

    float sums[kTiles][4] = {};
    constexpr int kStep = kChunk * kChunksInFlight, kStride = kWarpsOfLinear * kStep;
    Words4 upper_words[kChunksInFlight], lower_words[kChunksInFlight];
    // Loads past the end are skipped: stale registers are then multiplied by tokens that are zero.
    const auto read = [&](int c, int k) {
        stream16_where(k < call.width, upper_words[c], upper + k);
        stream16_where(k < call.width, lower_words[c], lower + k);
    };
    const auto multiply = [&](int k, const Words4& upper_now, const Words4& lower_now) {
        Words4 tokens[kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int token = tile * kColumns + g;
            const bool inside = k < call.width && token < call.tokens;
            tokens[tile] = inside ? load16(call.x + token * width + k + t * 8) : Words4{};
        }
        multiply_chunk<kTiles>(sums, upper_now, lower_now, tokens);
    };
    int base = warp * kStep;
    let_later_start();
#pragma unroll
    for (int c = 0; c < kChunksInFlight; ++c) {
        upper_words[c] = lower_words[c] = Words4{};
        read(c, base + c * kChunk);
    }
    if (call.width > 0)     // a branch: otherwise the compiler moves loads below the wait
        wait_for_earlier(); // no kernel writes weights
#pragma unroll 1
    for (; base + kStride < call.width; base += kStride) {
        Words4 upper_now[kChunksInFlight], lower_now[kChunksInFlight];
#pragma unroll
        for (int c = 0; c < kChunksInFlight; ++c) {
            upper_now[c] = upper_words[c];
            lower_now[c] = lower_words[c];
            if (kLoads == Loads::kBeforeUse)
                read(c, base + c * kChunk + kStride);
        }
#pragma unroll
        for (int c = 0; c < kChunksInFlight; ++c) {
            multiply(base + c * kChunk, upper_now[c], lower_now[c]);
            if (kLoads == Loads::kAfterUse)
                read(c, base + c * kChunk + kStride);
        }
    }
#pragma unroll
    for (int c = 0; c < kChunksInFlight; ++c)
        multiply(base + c * kChunk, upper_words[c], lower_words[c]);

#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            of_warp[warp][tile * kColumns + 2 * t + i % 2][g + 8 * (i / 2)] = sums[tile][i];
        }
    }
    __syncthreads();
    for (int index = threadIdx.x; index < kTiles * kColumns * kRowsOfLinear; index += blockDim.x) {
        const int token = index / kRowsOfLinear, row = index % kRowsOfLinear;
        if (token >= call.tokens || first_row + row >= call.rows)
            continue;
        float sum = call.bias == nullptr ? 0.0f : call.bias[first_row + row];
#pragma unroll
        for (int w = 0; w < kWarpsOfLinear; ++w)
            sum += of_warp[w][token][row];
        const int64_t place = static_cast<int64_t>(token) * call.rows + first_row + row;
        if (kFloat) {
            static_cast<float*>(call.out)[place] = sum;
        } else {
            static_cast<Bf16*>(call.out)[place] = to_bf16(sum);
        }
    }
}

} // namespace penstock::cuda
