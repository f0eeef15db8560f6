// embedding: gathers and dequantizes rows of a packed matrix, which may also be the LM head.
//
//   tensor[0]  tokens [T] int32, each in 0 .. V - 1
//   tensor[1]  out [T, K] float32
//   real[0]    factor of the values, applied after they are rounded
//   object     LinearWeights of one part, [V, K]
//
// Values equal the source's: scale * q + minimum, computed in float64 and rounded once.
#pragma once

#include "cpu/linear/linear_partition.h"
#include "cpu/row_tasks.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

PENSTOCK_INLINE uint32_t load_u32(const uint8_t* from) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    return word;
}

PENSTOCK_INLINE float half_at(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    return f16_to_f32(half);
}

// Unpacks the quants of one row in one unit; `words` points to the row's word of the first step.
PENSTOCK_INLINE void unpack_quants(const PackedMatrix& part, const uint8_t* words, uint8_t* q) {
    constexpr int kStepBytes = 4 * kPackedTileRows;
    if (part.encoding == Encoding::affine8) {
        for (int step = 0; step < 8; ++step)
            std::memcpy(q + 4 * step, words + step * kStepBytes, 4);
        return;
    }
    for (int step = 0; step < 4; ++step) {
        const uint32_t pair = load_u32(words + step * kStepBytes);
        const uint32_t low = pair & 0x0f0f0f0fu;
        const uint32_t high = (pair >> 4) & 0x0f0f0f0fu;
        std::memcpy(q + 8 * step, &low, 4);
        std::memcpy(q + 8 * step + 4, &high, 4);
    }
    if (part.encoding == Encoding::affine4)
        return;
    if (is_table(part.encoding)) {
        for (int k = 0; k < kUnit; ++k)
            q[k] = part.table[q[k]];
        return;
    }
    for (int k = 0; k < kUnit; ++k) {
        const uint8_t top = words[(4 + k / 16) * kStepBytes + k % 4];
        q[k] = static_cast<uint8_t>(q[k] | ((top >> (2 * (k / 4 % 4)) & 3) << 4));
    }
}

// Returns the scale or the minimum of one row for one group. Two-level values are multiplied by
// `super`.
PENSTOCK_INLINE float value_at(ScaleForm form, const uint8_t* values, int64_t row, float super) {
    switch (form) {
    case ScaleForm::f16: return half_at(values + 2 * row);
    case ScaleForm::f32: return bits_float(load_u32(values + 4 * row));
    case ScaleForm::two_level:
    case ScaleForm::paired: break; // never used for embedding tables
    }
    return super * static_cast<float>(static_cast<int8_t>(values[row]));
}

PENSTOCK_INLINE void gather_affine(const PackedMatrix& part, const uint8_t* packed_tile,
                                   int64_t row, int64_t depth, float* out) {
    const int64_t groups = kUnit / part.group;
    const int64_t column = kPackedTileRows * scale_bytes(part.scale_form);
    const int64_t scales = groups * column * (part.stored_minimum ? 2 : 1);
    const int64_t bytes = unit_bytes(part);
    float super_scale = 1.0f;
    float super_minimum = 1.0f;
    for (int64_t unit = 0; unit < depth / kUnit; ++unit) {
        if (part.scale_form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
            super_scale = half_at(packed_tile + 2 * row);
            if (part.stored_minimum)
                super_minimum = half_at(packed_tile + 2 * (kPackedTileRows + row));
            packed_tile += super_bytes(part);
        }
        uint8_t q[kUnit];
        unpack_quants(part, packed_tile + scales + 4 * row, q);
        for (int64_t g = 0; g < groups; ++g) {
            const double scale =
                value_at(part.scale_form, packed_tile + g * column, row, super_scale);
            const double minimum =
                part.stored_minimum ? value_at(part.scale_form, packed_tile + (groups + g) * column,
                                               row, super_minimum)
                                    : -static_cast<double>(part.zero_point) * scale;
            for (int64_t k = g * part.group; k < (g + 1) * part.group; ++k) {
                out[unit * kUnit + k] = static_cast<float>(scale * q[k] + minimum);
            }
        }
        packed_tile += bytes;
    }
}

PENSTOCK_INLINE void gather_dense(const PackedMatrix& part, const uint8_t* packed_tile, int64_t row,
                                  int64_t depth, float* out) {
    for (int64_t k = 0; k < depth; ++k) {
        if (part.encoding == Encoding::dense_f32) {
            out[k] = bits_float(load_u32(packed_tile + 4 * (k * kPackedTileRows + row)));
        } else if (part.encoding == Encoding::dense_f16) {
            out[k] = half_at(packed_tile + 2 * (k * kPackedTileRows + row));
        } else {
            uint16_t value;
            std::memcpy(&value, packed_tile + 2 * ((k / 2 * kPackedTileRows + row) * 2 + k % 2), 2);
            out[k] = bf16_to_f32(value);
        }
    }
}

// Tokens per task.
constexpr int64_t kEmbeddingTaskTokens = 8;

inline int64_t embedding_tasks(const Arguments& arguments, int) {
    return ceil_div(arguments.tensor[0].shape[0], kEmbeddingTaskTokens);
}

inline void embedding_run(const Arguments& arguments, int, int64_t task, Workspace&) {
    const auto& linear = *static_cast<const LinearWeights*>(arguments.object);
    const PackedMatrix& part = linear.parts[0];
    const TensorView& tokens = arguments.tensor[0];
    const TensorView& out = arguments.tensor[1];
    const int64_t begin = task * kEmbeddingTaskTokens;
    const int64_t stop = begin + kEmbeddingTaskTokens;
    const int64_t end = stop < tokens.shape[0] ? stop : tokens.shape[0];
    for (int64_t i = begin; i < end; ++i) {
        const int64_t token = static_cast<const int32_t*>(tokens.data)[i * tokens.stride[0]];
        const uint8_t* packed_tile = part.data + token / kPackedTileRows * part.packed_tile_bytes;
        float* to = static_cast<float*>(out.data) + i * out.stride[0];
        if (is_affine(part.encoding)) {
            gather_affine(part, packed_tile, token % kPackedTileRows, linear.depth, to);
        } else {
            gather_dense(part, packed_tile, token % kPackedTileRows, linear.depth, to);
        }
        if (const float factor = arguments.real[0]; factor != 1.0f) {
            for (int64_t k = 0; k < linear.depth; ++k)
                to[k] *= factor;
        }
    }
}

constexpr Kernel kEmbeddingKernels[] = {
    {"embedding", one_phase, embedding_tasks, embedding_run, no_workspace, true},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
