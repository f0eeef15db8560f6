// Random weights in every format that can be packed, and the expected results of a linear layer,
// computed only from the definitions in kernels/weights.py and linear_affine.inl.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/pack/pack.h"
#include "cpu/simd/half.h"

namespace penstock::cpu::testing {

// A weight format. `scales` is f32, f16, or u8 or i8 for two-level scales.
struct Format {
    std::string name;
    int bits;
    int group;
    DType scales;
    bool minimum;
    int zero_point;
    int largest;                    // quants are 0 .. largest
    const uint8_t* table = nullptr; // only quants of this table, unless null

    int smallest() const { return table ? *std::min_element(table, table + 16) : 0; }
};

// The quants of IQ4_NL and IQ4_XS, of 4-bit floats, and of IQ2 (padded).
constexpr uint8_t kIq4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                              129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kFloat4[16] = {76, 77, 78, 79, 80, 82, 84, 88, 76, 75, 74, 73, 72, 70, 68, 64};
constexpr uint8_t kIq2[16] = {0, 18, 35, 51, 68, 86, 0, 18, 35, 51, 68, 86, 0, 18, 35, 51};

inline const std::vector<Format> kAffineFormats{
    {"q4_0", 4, 32, DType::f16, false, 8, 15},
    {"q4_1", 4, 32, DType::f16, true, 0, 15},
    {"q2_k", 4, 16, DType::u8, true, 0, 3},
    {"q3_k", 4, 16, DType::i8, false, 4, 7},
    {"q4_k", 4, 32, DType::u8, true, 0, 15},
    {"4 bits, groups of 16", 4, 16, DType::f16, true, 0, 15},
    {"4 bits, float scales of 16", 4, 16, DType::f32, false, 7, 15},
    {"q5_0", 8, 32, DType::f16, false, 16, 31},
    {"q5_k", 8, 32, DType::u8, true, 0, 31},
    {"q6_k", 8, 16, DType::i8, false, 32, 63},
    {"6 bits, minima of 16", 8, 16, DType::f16, true, 0, 63},
    {"q8_0", 8, 32, DType::f16, false, 128, 255},
    {"8 bits, two levels", 8, 32, DType::i8, false, 128, 255},
    {"iq4_nl", 8, 32, DType::f16, false, 128, 241, kIq4},
    {"iq4_xs", 8, 32, DType::i8, false, 128, 241, kIq4},
    {"mxfp4", 8, 32, DType::f16, false, 76, 88, kFloat4},
    {"mxfp4, float scales", 8, 32, DType::f32, false, 76, 88, kFloat4},
    {"nvfp4", 8, 16, DType::f32, false, 76, 88, kFloat4},
    {"iq2_xxs", 8, 32, DType::i8, false, 43, 86, kIq2},
    {"iq2_xs", 8, 16, DType::i8, false, 43, 86, kIq2},
    {"8 bits, zero point 1", 8, 32, DType::f32, false, 1, 255},
    {"8 bits, minima", 8, 32, DType::f32, true, 0, 255},
    {"8 bits, minima of 16", 8, 16, DType::f16, true, 0, 255},
    {"8 bits, groups of 16", 8, 16, DType::f32, false, 255, 255},
};

// A matrix [rows, depth] with its arrays; `source()` borrows them.
struct Matrix {
    int64_t rows;
    int64_t depth;
    Format format;
    std::vector<uint8_t> q; // one per byte
    std::vector<uint8_t> packed;
    std::vector<uint8_t> scale, minimum; // raw bytes of format.scales
    std::vector<uint16_t> super_scale, super_minimum;
    std::vector<float> scale_value, minimum_value; // [rows, depth / group], exact
    DType dense_type = DType::f32;
    std::vector<float> dense; // exact values, if the matrix is dense
    std::vector<uint16_t> dense_half;

    MatrixSource source() const {
        MatrixSource result;
        result.rows = rows;
        result.depth = depth;
        if (!dense.empty()) {
            result.dense_dtype = dense_type;
            result.dense = dense_type == DType::f32 ? static_cast<const void*>(dense.data())
                                                    : static_cast<const void*>(dense_half.data());
            return result;
        }
        result.bits = format.bits;
        result.group = format.group;
        result.q = packed.data();
        result.scale = scale.data();
        result.scale_dtype = format.scales;
        result.zero_point = format.zero_point;
        const bool two_level = !super_scale.empty();
        if (two_level)
            result.super_scale = super_scale.data();
        if (format.minimum) {
            result.minimum = minimum.data();
            result.minimum_dtype = format.scales;
            if (two_level)
                result.super_minimum = super_minimum.data();
        }
        return result;
    }

    float weight(int64_t row, int64_t k) const {
        if (!dense.empty())
            return dense[static_cast<size_t>(row * depth + k)];
        const auto group = static_cast<size_t>((row * depth + k) / format.group);
        const double s = scale_value[group];
        const double m = format.minimum ? minimum_value[group] : -format.zero_point * s;
        return static_cast<float>(s * q[static_cast<size_t>(row * depth + k)] + m);
    }
};

// Fills the values of all groups, as scales or as minima, in the format's element type.
inline void random_values(std::mt19937& random, const Matrix& matrix, std::vector<uint8_t>& raw,
                          std::vector<uint16_t>& super, std::vector<float>& value) {
    std::normal_distribution<float> normal(0.0f, 0.02f);
    const DType type = matrix.format.scales;
    const int64_t count = matrix.rows * matrix.depth / matrix.format.group;
    const int64_t supers = (matrix.depth + 255) / 256;
    value.resize(static_cast<size_t>(count));
    raw.resize(static_cast<size_t>(count) * size_of(type));
    const bool two_level = type == DType::i8 || type == DType::u8;
    if (two_level) {
        for (int64_t i = 0; i < matrix.rows * supers; ++i)
            super.push_back(f32_to_f16(normal(random)));
    }
    for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        if (two_level) {
            const int64_t row = i * matrix.format.group / matrix.depth;
            const int64_t k = i * matrix.format.group % matrix.depth;
            raw[at] = static_cast<uint8_t>(random() % (type == DType::i8 ? 256 : 64));
            const float multiplier = type == DType::i8 ? static_cast<int8_t>(raw[at]) : raw[at];
            value[at] = multiplier * f16_to_f32(super[static_cast<size_t>(row * supers + k / 256)]);
        } else if (type == DType::f16) {
            const uint16_t half = f32_to_f16(normal(random));
            std::memcpy(raw.data() + 2 * at, &half, 2);
            value[at] = f16_to_f32(half);
        } else {
            value[at] = normal(random);
            std::memcpy(raw.data() + 4 * at, &value[at], 4);
        }
    }
}

inline void pack_nibbles(Matrix& matrix) {
    matrix.packed = matrix.q;
    if (matrix.format.bits == 8)
        return;
    matrix.packed.resize(matrix.q.size() / 2);
    for (size_t i = 0; i < matrix.packed.size(); ++i) {
        matrix.packed[i] = static_cast<uint8_t>(matrix.q[2 * i] | (matrix.q[2 * i + 1] << 4));
    }
}

inline Matrix random_affine(std::mt19937& random, const Format& format, int64_t rows,
                            int64_t depth) {
    Matrix matrix{};
    matrix.rows = rows;
    matrix.depth = depth;
    matrix.format = format;
    matrix.q.resize(static_cast<size_t>(rows * depth));
    for (auto& q : matrix.q)
        q = format.table ? format.table[random() % 16]
                         : static_cast<uint8_t>(random() % (format.largest + 1));
    pack_nibbles(matrix);
    random_values(random, matrix, matrix.scale, matrix.super_scale, matrix.scale_value);
    if (format.minimum) {
        random_values(random, matrix, matrix.minimum, matrix.super_minimum, matrix.minimum_value);
    }
    return matrix;
}

inline Matrix random_dense(std::mt19937& random, DType type, int64_t rows, int64_t depth) {
    std::normal_distribution<float> normal(0.0f, 0.1f);
    Matrix matrix{};
    matrix.rows = rows;
    matrix.depth = depth;
    matrix.dense_type = type;
    for (int64_t i = 0; i < rows * depth; ++i) {
        const float value = normal(random);
        const uint16_t half = type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        matrix.dense_half.push_back(half);
        matrix.dense.push_back(type == DType::f32   ? value
                               : type == DType::f16 ? f16_to_f32(half)
                                                    : bf16_to_f32(half));
    }
    return matrix;
}

// a * b + c: rounded once, or twice as in the scalar ISA.
inline float multiply_add(float a, float b, float c, Isa isa) {
    return isa == Isa::scalar ? a * b + c : std::fma(a, b, c);
}

// The least-squares scale for x, summed in the documented order.
inline float fitted_scale(const float* x, float inverse, const int8_t* value, Isa isa) {
    float chain[16] = {};
    int32_t squares = 0;
    for (int k = 0; k < kUnit; ++k) {
        chain[k % 16] =
            multiply_add(x[k] * inverse, static_cast<float>(value[k]), chain[k % 16], isa);
        squares += value[k] * value[k];
    }
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i)
            chain[i] += chain[i + width];
    }
    return chain[0] / static_cast<float>(squares) / inverse;
}

// One row of activations as quantize_rows must write it.
inline std::vector<QuantizedUnit> quantized(const float* x, int64_t depth, Isa isa) {
    std::vector<QuantizedUnit> units(static_cast<size_t>(depth / kUnit));
    for (size_t u = 0; u < units.size(); ++u, x += kUnit) {
        float largest = 0.0f;
        bool ordered = true;
        for (int k = 0; k < kUnit; ++k) {
            ordered = ordered && !std::isnan(x[k]);
            largest = std::fmax(largest, std::fabs(x[k]));
        }
        const float step = ordered ? largest / 127.0f : std::nanf("");
        const float inverse = 127.0f / largest;
        const bool usable = ordered && std::isfinite(inverse) && inverse > 0.0f;
        int32_t sum[2] = {0, 0};
        for (int k = 0; k < kUnit; ++k) {
            units[u].value[k] =
                usable ? static_cast<int8_t>(std::nearbyint(x[k] * inverse)) : int8_t{0};
            sum[k / 16] += units[u].value[k];
        }
        const float scale = usable ? fitted_scale(x, inverse, units[u].value, isa) : step;
        units[u].scale = scale;
        units[u].scaled_sum = scale * static_cast<float>(sum[0] + sum[1]);
        units[u].sum[0] = static_cast<int16_t>(sum[0]);
        units[u].sum[1] = static_cast<int16_t>(sum[1]);
        units[u].centre = -8 * (sum[0] + sum[1]);
    }
    return units;
}

// The two bf16 that approximate a: the nearest one and that of the remainder.
struct Parts {
    float high, low;

    explicit Parts(float a)
        : high(bf16_to_f32(f32_to_bf16(a))), low(bf16_to_f32(f32_to_bf16(a - high))) {}
};

// The part of minima in groups of 32, on ISAs with tiles.
inline float minimum_product(const Matrix& matrix, int64_t row,
                             const std::vector<QuantizedUnit>& x) {
    const auto units = static_cast<int64_t>(x.size());
    float acc = 0.0f;
    for (int64_t step = 0; step < units; step += kSumStep) {
        const int64_t end = std::min(step + kSumStep, units);
        const auto add = [&](float Parts::* of_row, float Parts::* of_minimum) {
            float chain[2] = {0.0f, 0.0f};
            for (int64_t u = step; u < end; ++u) {
                const auto index = static_cast<size_t>(row * units + u);
                const Parts sum(x[static_cast<size_t>(u)].scaled_sum);
                const Parts minimum(matrix.minimum_value[index]);
                chain[u % 2] = std::fma(sum.*of_row, minimum.*of_minimum, chain[u % 2]);
            }
            acc += chain[0] + chain[1];
        };
        add(&Parts::high, &Parts::high);
        add(&Parts::high, &Parts::low);
        add(&Parts::low, &Parts::high);
    }
    return acc;
}

// acc for one output of an affine matrix, by the documented arithmetic.
inline float affine_product(const Matrix& matrix, int64_t row, const std::vector<QuantizedUnit>& x,
                            Isa isa) {
    const int64_t group = matrix.format.group;
    const bool minima_by_tiles = matrix.format.minimum && group == kUnit && has_bf16_tiles(isa);
    float acc = 0.0f;
    for (int64_t k = 0; k < matrix.depth; k += group) {
        const QuantizedUnit& unit = x[static_cast<size_t>(k / kUnit)];
        const auto index = static_cast<size_t>((row * matrix.depth + k) / group);
        int32_t dot = 0;
        int32_t sum = 0;
        for (int64_t i = k; i < k + group; ++i) {
            const int32_t value = unit.value[i % kUnit];
            const int32_t zero = matrix.format.minimum ? 0 : matrix.format.zero_point;
            dot += (matrix.q[static_cast<size_t>(row * matrix.depth + i)] - zero) * value;
            sum += value;
        }
        acc =
            multiply_add(static_cast<float>(dot), unit.scale * matrix.scale_value[index], acc, isa);
        if (matrix.format.minimum && !minima_by_tiles) {
            acc = multiply_add(matrix.minimum_value[index], unit.scale * static_cast<float>(sum),
                               acc, isa);
        }
    }
    return minima_by_tiles ? acc + minimum_product(matrix, row, x) : acc;
}

// Whether a matrix has paired scales if it is used for products.
inline bool is_paired(const Matrix& matrix, Isa isa) {
    const Format& format = matrix.format;
    return has_paired_scales(isa) && format.bits == 4 && format.group == 32 &&
           format.scales == DType::f16 && matrix.depth % 64 == 0 &&
           (format.minimum || format.zero_point == 8);
}

// A number as a multiple of a step, up to +-32767, or 16383 for a row of activations.
inline int64_t multiple(double value, double step) {
    return step > 0.0 && std::isfinite(step) ? std::lrint(value * (1.0 / step)) : 0;
}

// The minimum of q - 8 in one unit of a matrix with paired scales. Units are numbered across rows.
inline double paired_minimum(const Matrix& matrix, size_t unit) {
    const double scale = matrix.scale_value[unit];
    const double stored =
        matrix.format.minimum ? matrix.minimum_value[unit] : -matrix.format.zero_point * scale;
    return stored + 8.0 * scale;
}

// The step of one row of a matrix with paired scales.
inline float paired_step(const Matrix& matrix, int64_t row) {
    const auto units = static_cast<size_t>(matrix.depth / kUnit);
    double largest = 0.0;
    for (size_t unit = static_cast<size_t>(row) * units;
         unit < (static_cast<size_t>(row) + 1) * units; ++unit) {
        largest = std::max({largest, std::fabs(double{matrix.scale_value[unit]}),
                            std::fabs(paired_minimum(matrix, unit) / 8.0)});
    }
    return static_cast<float>(largest / 32767.0);
}

// One output of a matrix with paired scales, without bias.
inline float paired_product(const Matrix& matrix, int64_t row,
                            const std::vector<QuantizedUnit>& x) {
    const size_t units = x.size(), first = static_cast<size_t>(row) * units;
    const auto scale = [&](size_t unit) { return double{matrix.scale_value[first + unit]}; };
    const auto minimum = [&](size_t unit) { return paired_minimum(matrix, first + unit); };
    float of_row = 0.0f;
    for (const QuantizedUnit& unit : x)
        of_row = std::max(of_row, unit.scale);
    const float step = paired_step(matrix, row);
    const float inverse = 16383.0f / of_row;
    const bool usable = inverse > 0.0f && std::isfinite(inverse);
    const auto of_activations = [&](float value) -> int64_t {
        return usable ? std::lrint(value) : 0;
    };
    float acc = 0.0f;
    for (size_t pair = 0; pair < units; pair += 2) {
        int64_t sum = 0;
        for (size_t unit = pair; unit < pair + 2; ++unit) {
            int64_t dot = 0;
            for (size_t k = 0; k < kUnit; ++k)
                dot += (matrix.q[(first + unit) * kUnit + k] - 8) * x[unit].value[k];
            const int64_t both =
                multiple(scale(unit), step) * of_activations(x[unit].scale * inverse) + (1 << 14);
            sum += dot * (both >> 15);
            sum += multiple(minimum(unit), 8.0 * step) *
                   of_activations(x[unit].scaled_sum * inverse / 4096.0f);
        }
        CHECK(std::abs(sum) <= std::numeric_limits<int32_t>::max());
        acc += static_cast<float>(sum);
    }
    return acc * step * (of_row * (32768.0f / 16383.0f));
}

inline float dense_product(const Matrix& matrix, int64_t row, const float* x, Isa isa) {
    float chain[2] = {0.0f, 0.0f};
    for (int64_t k = 0; k < matrix.depth; ++k) {
        chain[k % 2] = multiply_add(matrix.weight(row, k), x[k], chain[k % 2], isa);
    }
    return chain[0] + chain[1];
}

// The product of a bf16 matrix on ISAs that multiply it in pairs.
inline float pair_product(const Matrix& matrix, int64_t row, const float* x) {
    const auto rounded = [](float value) { return bf16_to_f32(f32_to_bf16(value)); };
    float chain[2] = {0.0f, 0.0f};
    for (int64_t k = 0; k < matrix.depth; k += 2) {
        float& acc = chain[k / 2 % 2];
        for (int64_t i = k + 1; i >= k; --i) {
            if (i < matrix.depth)
                acc = std::fma(matrix.weight(row, i), rounded(x[i]), acc);
        }
    }
    return chain[0] + chain[1];
}

// Whether a matrix is packed as int16. `may_round`: its products may be rounded.
inline bool is_fixed(const Matrix& matrix, Isa isa, bool may_round) {
    if (matrix.dense.empty() || !has_int16_products(isa))
        return false;
    if (has_bf16_pairs(isa))
        return may_round && matrix.dense_type == DType::f16;
    return matrix.dense_type != DType::f32;
}

// `count` numbers as int16 of at most `most`, and the scale of these.
struct Fixed {
    std::vector<int64_t> value;
    float scale = 0.0f;

    template <class At>
    Fixed(int64_t count, float most, float least, const At& at)
        : value(static_cast<size_t>(count)) {
        float largest = 0.0f;
        bool finite = true;
        for (int64_t i = 0; i < count; ++i) {
            finite = finite && std::isfinite(at(i));
            largest = std::fmax(largest, std::fabs(at(i)));
        }
        scale = finite ? largest / most : std::nanf("");
        for (int64_t i = 0; i < count && finite && largest >= least && largest > 0.0f; ++i)
            value[static_cast<size_t>(i)] = std::lrint(at(i) * (most / largest));
    }
};

// The product of a matrix that is packed as int16.
inline float fixed_product(const Matrix& matrix, int64_t row, const float* x) {
    float acc = 0.0f;
    for (int64_t k = 0; k < matrix.depth; k += kFixedGroup) {
        const int64_t count = std::min(kFixedGroup, matrix.depth - k);
        const Fixed weights(count, 8191.0f, 0x1p-100f,
                            [&](int64_t i) { return matrix.weight(row, k + i); });
        const Fixed of_row(count, 4095.0f, 0x1p-100f, [&](int64_t i) { return x[k + i]; });
        int64_t dot = 0;
        for (size_t i = 0; i < weights.value.size(); ++i)
            dot += weights.value[i] * of_row.value[i];
        CHECK(std::abs(dot) <= std::numeric_limits<int32_t>::max());
        acc = std::fma(static_cast<float>(dot), weights.scale * of_row.scale, acc);
    }
    return acc;
}

// The product of bf16 weights, weight(k), in tiles.
template <class Weight>
float tile_product(int64_t depth, const float* x, const Weight& weight) {
    float acc = 0.0f;
    for (int64_t step = 0; step < depth; step += kUnit) {
        float chain[2] = {0.0f, 0.0f};
        for (int64_t k = step; k < std::min(step + kUnit, depth); ++k) {
            const float rounded = bf16_to_f32(f32_to_bf16(x[k]));
            chain[k % 2] = std::fma(rounded, weight(k), chain[k % 2]);
        }
        acc += chain[0] + chain[1];
    }
    return acc;
}

// The weights of one row of an integer matrix as prompt tokens are multiplied with them. `paired`:
// the matrix is packed with paired scales.
inline std::vector<float> prompt_weights(const Matrix& matrix, int64_t row, bool paired) {
    std::vector<float> weights;
    const float step = paired ? paired_step(matrix, row) : 0.0f;
    for (int64_t k = 0; k < matrix.depth; ++k) {
        float weight = matrix.weight(row, k);
        if (paired) {
            const auto unit = static_cast<size_t>((row * matrix.depth + k) / kUnit);
            const int q = matrix.q[static_cast<size_t>(row * matrix.depth + k)];
            const auto scale = static_cast<float>(multiple(matrix.scale_value[unit], step));
            const auto minimum =
                static_cast<float>(multiple(paired_minimum(matrix, unit), 8.0 * step));
            weight = std::fma(static_cast<float>(q - 8), scale * step, minimum * (step * 8));
        }
        weights.push_back(bf16_to_f32(f32_to_bf16(weight)));
    }
    return weights;
}

} // namespace penstock::cpu::testing
