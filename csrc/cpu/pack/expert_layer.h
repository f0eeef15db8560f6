// The packed experts of one layer: Arguments::object of `experts` points to ExpertWeights.
#pragma once

#include "cpu/pack/packed_tile.h"

namespace penstock::cpu {

constexpr int64_t kExpertLine = 64;

// Layout of an activation row as input of a layer: quantized units if a matrix is affine, then
// floats if one is dense.
constexpr int64_t expert_float_offset(bool affine, int64_t depth) {
    return affine ? quantized_row_bytes(depth) : 0;
}
constexpr int64_t expert_row_bytes(bool affine, bool dense, int64_t depth) {
    const int64_t floats = (depth * 4 + kExpertLine - 1) / kExpertLine * kExpertLine;
    return expert_float_offset(affine, depth) + (dense ? floats : 0);
}

// One of the two layers of all experts. Parts e * parts_each and following are those of expert e;
// the columns of parts count from the expert's own first. Biases [E * packed_tiles.rows] are expert
// by expert.
struct ExpertLayer {
    LinearWeights packed_tiles;
    int64_t parts_each = 1;
    bool affine = false; // whether any part is affine
    bool dense = false;
};

// silu: silu(gate) * up. swiglu_oai: (up + 1) * gate * sigmoid(1.702 * gate), with gate clamped to
// at most 7 and up to +-7.
enum class ExpertActivation : uint8_t { silu, swiglu_oai };

struct ExpertWeights {
    int64_t count = 0;
    ExpertActivation activation = ExpertActivation::silu;
    ExpertLayer gate_up; // parts: gate, up
    ExpertLayer down;
};

} // namespace penstock::cpu
