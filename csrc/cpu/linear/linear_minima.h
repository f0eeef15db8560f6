// Products of stored minima in bf16 tiles. The minima's contribution to a product is itself a
// matrix product: the scaled sums of a row's units times the minima of the units. Included by
// linear_affine.inl.h; used on ISAs with tiles, if a group is a whole unit.
//
// Each number is split into two bf16: the nearest bf16, and the bf16 nearest to the remainder.
// Together they hold 16 bits, which is enough for every float16. For each 32 units, in order, three
// tile products are accumulated: high * high, high * low, low * high (row * minimum).
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/linear/packed_tile_reader.h"
#include "cpu/simd/matrix_tiles.h"
#include "cpu/simd/unrolled.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

template <int kGroup>
constexpr bool kMinimaByTiles = kTiles && kGroup == kUnit;

// The minima of 32 units of a packed tile, high and low parts, as right tile operands: [pair of
// units][row].
struct MinimumStep {
    alignas(64) uint16_t part[2][kSumStep / 2][2 * kPackedTileRows];
};

PENSTOCK_INLINE size_t minima_workspace_bytes(const LinearWeights& linear) {
    return static_cast<size_t>(sum_steps(linear.depth)) * sizeof(MinimumStep) +
           kRowBlock * kPackedTileRows * sizeof(float);
}

// The split minima of a packed tile, and the sums of minima for up to a block of rows,
// [rows][kPackedTileRows].
struct MinimumBuffers {
    void* memory;
    int64_t depth;

    MinimumStep* steps() const { return static_cast<MinimumStep*>(memory); }
    float* sums() const { return reinterpret_cast<float*>(steps() + sum_steps(depth)); }
};

#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)

PENSTOCK_INLINE F32 nearest_bf16(F32 a) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, a);
    return load_bf16(rounded);
}

PENSTOCK_INLINE void store_minimum_pair(MinimumStep* steps, int64_t pair, F32 first, F32 second) {
    MinimumStep& step = steps[pair / (kSumStep / 2)];
    const int64_t row = pair % (kSumStep / 2);
    const F32 high[2] = {nearest_bf16(first), nearest_bf16(second)};
    store_bf16_pairs(step.part[0][row], interleaved_bf16(high[0], high[1]));
    store_bf16_pairs(step.part[1][row], interleaved_bf16(first - high[0], second - high[1]));
}

// Splits the minima of a packed tile into high and low parts, with zeros past the last unit.
template <Encoding kEncoding>
PENSTOCK_INLINE void split_minima(const PackedMatrix& part, const uint8_t* packed_tile,
                                  int64_t units, MinimumStep* steps) {
    using Scales = PackedTileScales<1>;
    const int64_t scales_bytes = kPackedTileRows * scale_bytes(part.scale_form);
    Scales minima;
    const auto next = [&](int64_t unit) {
        if (part.scale_form == ScaleForm::two_level && unit % kUnitsPerSuper == 0)
            packed_tile = Scales::read_super(minima, packed_tile + 2 * kPackedTileRows);
        packed_tile = Scales::read(minima, part.scale_form, packed_tile + scales_bytes) +
                      quant_bytes(kEncoding);
        return minima.value[0][0];
    };
    const F32 zero = broadcast(0.0f);
    const int64_t pairs = ceil_div(units, kSumStep) * kSumStep / 2;
    for (int64_t pair = 0; pair < pairs; ++pair) {
        const F32 first = 2 * pair < units ? next(2 * pair) : zero;
        const F32 second = 2 * pair + 1 < units ? next(2 * pair + 1) : zero;
        store_minimum_pair(steps, pair, first, second);
    }
}

// Configures the tiles. 0: sums; 4, 5: high and low parts of rows; 6, 7: high and low parts of
// minima.
PENSTOCK_INLINE void configure_minima(int64_t rows) {
    const auto m = static_cast<uint8_t>(rows);
    configure_tiles({{m, 64}, {}, {}, {}, {m, 64}, {m, 64}, {16, 64}, {16, 64}});
}

// Multiplies the configured number of rows, up to 16, from `x` on with the minima of one packed
// tile.
PENSTOCK_INLINE void multiply_minima(const MinimumStep* steps, int64_t depth, const uint8_t* x,
                                     int64_t x_stride, float* sums) {
    constexpr int64_t kStepBytes = kSumStep * sizeof(uint16_t);
    const int64_t count = sum_steps(depth);
    const uint8_t* parts = x + quantized_units_bytes(depth);
    zero_tile<0>();
    for (int64_t s = 0; s < count; ++s) {
        load_tile<4>(parts + s * kStepBytes, x_stride);
        load_tile<5>(parts + (count + s) * kStepBytes, x_stride);
        load_tile<6>(steps[s].part[0], 4 * kPackedTileRows);
        load_tile<7>(steps[s].part[1], 4 * kPackedTileRows);
        multiply_bf16<0, 4, 6>();
        multiply_bf16<0, 4, 7>();
        multiply_bf16<0, 5, 6>();
    }
    store_tile<0>(sums, 4 * kPackedTileRows);
}

#else

template <Encoding kEncoding>
PENSTOCK_INLINE void split_minima(const PackedMatrix&, const uint8_t*, int64_t, MinimumStep*) {}
PENSTOCK_INLINE void configure_minima(int64_t) {}
PENSTOCK_INLINE void multiply_minima(const MinimumStep*, int64_t, const uint8_t*, int64_t, float*) {
}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
