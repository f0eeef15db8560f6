// The packed experts of one layer, to which Arguments::object of the kernel `experts` points.
#pragma once

#include "cpu/pack/packed_tile.h"

namespace penstock::cpu {

constexpr int64_t kExpertLine = 64;

// Return the offset of the floats in an activation row of a layer, and the bytes of the row:
// quantized units if a matrix of the layer is affine, then floats if a matrix is dense.
constexpr int64_t expert_float_offset(bool affine, int64_t depth) {
    return affine ? quantized_row_bytes(depth) : 0;
}
constexpr int64_t expert_row_bytes(bool affine, bool dense, int64_t depth) {
    const int64_t floats = (depth * 4 + kExpertLine - 1) / kExpertLine * kExpertLine;
    return expert_float_offset(affine, depth) + (dense ? floats : 0);
}

// One of the two layers of all experts. The parts of expert e are e * parts_each and following;
// their columns count from the expert's first column. Biases are [E * packed_tiles.rows], expert by
// expert.
struct ExpertLayer {
    LinearWeights packed_tiles;
    int64_t parts_each = 1;
    bool affine = false; // whether any part is affine
    bool dense = false;
};

// The activation is applied to the gate and multiplied by up or, without gates, applied to up.
// relu_squared computes max(x, 0)^2. swiglu_oai, only with gates, computes (up + 1) * gate *
// sigmoid(1.702 * gate), with gate clamped to at most 7 and up to -7..7.
enum class ExpertActivation : uint8_t { silu, gelu_tanh, relu_squared, swiglu_oai };

struct ExpertWeights {
    int64_t count = 0;
    ExpertActivation activation = ExpertActivation::silu;
    bool scales_input = false; // shares scale the input of experts, not their output
    ExpertLayer gate_up;       // two parts per expert: gate, up; or one: up
    ExpertLayer down;
};

} // namespace penstock::cpu
