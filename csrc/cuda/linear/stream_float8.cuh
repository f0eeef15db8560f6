// Linear layer for few tokens with 8-bit float weights: codes are streamed once, straight into
// registers, and widened there to bfloat16.
//
// As in stream_linear.cuh, a block computes 16 rows of the weight, and its warps divide the width,
// here into groups of 128 columns. Lane t of a row takes 16 adjacent codes of every 64, which fill
// its positions in four products. Each group has its own accumulator, which is multiplied by the
// group's scale in float32. The sums of the warps are added in order; a token's sum does not depend
// on the rest of the batch.
#pragma once

#include "cuda/linear/products.cuh"

namespace penstock::cuda {

constexpr int kWarpsOfFloat8 = 8;
constexpr int kRowsOfFloat8 = 16;
constexpr int kCodesOfChunk = 64; // codes of a row that its four lanes load at a time
constexpr int kGroupsInFlight = 2;
constexpr int kChunksOfGroup = kColumnsOfScale / kCodesOfChunk;

struct StreamFloat8 {
    void* out; // [tokens, rows]
    const Bf16* x;
    const uint8_t* codes; // [rows, width]
    const float* scale;   // row r and group c have scale[c * scale_stride + r / scale_rows]
    const float* bias;    // [rows] or null
    int tokens, rows, width;
    int scale_rows, scale_stride; // stride 0: a row has one scale
    bool to_float;
};

template <int kTiles>
__global__ void __launch_bounds__(kWarpsOfFloat8* kWarp, kTiles == 1 ? 3 : 2)
    stream_float8_kernel(const StreamFloat8 call) {
    __shared__ float of_warp[kWarpsOfFloat8][kTiles * kColumns][kRowsOfFloat8];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int g = lane / 4, t = lane % 4;
    const int first_row = blockIdx.x * kRowsOfFloat8;
    const int64_t width = call.width;
    // Rows past the end are read from the last row, and their results are not stored.
    const int last_row = call.rows - 1;
    const int upper_row = min(first_row + g, last_row),
              lower_row = min(first_row + g + 8, last_row);
    const uint8_t* const upper = call.codes + upper_row * width + t * 16;
    const uint8_t* const lower = call.codes + lower_row * width + t * 16;
    const float* const upper_scale = call.scale + upper_row / call.scale_rows;
    const float* const lower_scale = call.scale + lower_row / call.scale_rows;

    float sums[kTiles][4] = {};
    constexpr int kStep = kColumnsOfScale * kGroupsInFlight, kStride = kWarpsOfFloat8 * kStep;
    Words4 upper_codes[kGroupsInFlight][kChunksOfGroup] = {};
    Words4 lower_codes[kGroupsInFlight][kChunksOfGroup] = {};
    float upper_factor[kGroupsInFlight] = {}, lower_factor[kGroupsInFlight] = {};
    // Loads past the end are skipped: stale registers are then multiplied by tokens that are zero.
    const auto read = [&](int slot, int k) {
        const bool inside = k < call.width;
        const int64_t place = static_cast<int64_t>(k / kColumnsOfScale) * call.scale_stride;
        stream_float_where(inside, upper_factor[slot], upper_scale + place);
        stream_float_where(inside, lower_factor[slot], lower_scale + place);
#pragma unroll
        for (int c = 0; c < kChunksOfGroup; ++c) {
            stream16_where(inside, upper_codes[slot][c], upper + k + c * kCodesOfChunk);
            stream16_where(inside, lower_codes[slot][c], lower + k + c * kCodesOfChunk);
        }
    };
    const auto multiply = [&](int slot, int k) {
        float part[kTiles][4] = {};
#pragma unroll
        for (int c = 0; c < kChunksOfGroup; ++c) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Words4 tokens[kTiles];
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile) {
                    const int token = tile * kColumns + g;
                    const bool inside = k < call.width && token < call.tokens;
                    const int place = k + c * kCodesOfChunk + t * 16 + half * 8;
                    tokens[tile] = inside ? load16(call.x + token * width + place) : Words4{};
                }
                multiply_chunk<kTiles>(part, widen_half(upper_codes[slot][c], half),
                                       widen_half(lower_codes[slot][c], half), tokens);
            }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[tile][i] += part[tile][i] * (i < 2 ? upper_factor[slot] : lower_factor[slot]);
        }
    };
    int base = warp * kStep;
    let_later_start();
#pragma unroll
    for (int slot = 0; slot < kGroupsInFlight; ++slot)
        read(slot, base + slot * kColumnsOfScale);
    if (call.width > 0)     // a branch: otherwise the compiler moves loads below the wait
        wait_for_earlier(); // no kernel writes weights
#pragma unroll 1
    for (; base + kStride < call.width; base += kStride) {
#pragma unroll
        for (int slot = 0; slot < kGroupsInFlight; ++slot) {
            multiply(slot, base + slot * kColumnsOfScale);
            read(slot, base + slot * kColumnsOfScale + kStride);
        }
    }
#pragma unroll
    for (int slot = 0; slot < kGroupsInFlight; ++slot)
        multiply(slot, base + slot * kColumnsOfScale);

#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            of_warp[warp][tile * kColumns + 2 * t + i % 2][g + 8 * (i / 2)] = sums[tile][i];
        }
    }
    __syncthreads();
    for (int index = threadIdx.x; index < kTiles * kColumns * kRowsOfFloat8; index += blockDim.x) {
        const int token = index / kRowsOfFloat8, row = index % kRowsOfFloat8;
        if (token >= call.tokens || first_row + row >= call.rows)
            continue;
        float sum = call.bias == nullptr ? 0.0f : call.bias[first_row + row];
#pragma unroll
        for (int w = 0; w < kWarpsOfFloat8; ++w)
            sum += of_warp[w][token][row];
        store_result(call.out, static_cast<int64_t>(token) * call.rows + first_row + row, sum,
                     call.to_float);
    }
}

} // namespace penstock::cuda
