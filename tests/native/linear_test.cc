// Tests that products with packed weights equal their definition bit for bit, on every ISA that
// runs here, for every weight format, any number of rows and any order of tasks.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "check.h"
#include "cpu/isa/dispatch.h"
#include "random_linear_weights.h"

using namespace penstock;
using namespace penstock::cpu;
using namespace penstock::cpu::testing;

namespace {

// Every ISA that runs here, or those named on the command line.
std::vector<Isa>& isas() {
    static std::vector<Isa> result;
    return result;
}

void choose_isas(int count, char** names) {
    for (const Isa isa : kIsas) {
        const std::string_view name = isa_name(isa);
        const bool named = std::find(names, names + count, name) != names + count;
        if (count == 0 ? missing_feature(isa).empty() : named)
            isas().push_back(isa);
    }
    CHECK(count == 0 || static_cast<int>(isas().size()) == count);
    for (const Isa isa : isas())
        CHECK(missing_feature(isa).empty());
}

TensorView view(void* data, DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    TensorView result;
    result.data = data;
    result.dtype = dtype;
    result.rank = 2;
    result.shape = {rows, columns, 1, 1};
    result.stride = {stride, 1, 1, 1};
    return result;
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory poisoned(size_t bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64 + 64;
    Memory memory(std::aligned_alloc(64, rounded));
    std::memset(memory.get(), 0xff, rounded);
    return memory;
}

// Runs the tasks last to first, each with a poisoned workspace.
void run(Isa isa, const char* name, const Arguments& arguments) {
    const Kernel* kernel = kernels(isa).find(name);
    CHECK(kernel != nullptr);
    const size_t bytes = kernel->workspace_bytes(arguments);
    for (int phase = 0; phase < kernel->phases(arguments); ++phase) {
        for (int64_t task = kernel->tasks(arguments, phase) - 1; task >= 0; --task) {
            const Memory memory = poisoned(bytes);
            Workspace workspace{memory.get(), bytes};
            kernel->run(arguments, phase, task, workspace);
        }
    }
}

std::unique_ptr<PackedLinear> pack(const std::vector<Matrix>& parts, const float* bias, Isa isa,
                                   Use use = Use::products) {
    std::vector<MatrixSource> sources;
    for (const Matrix& part : parts)
        sources.push_back(part.source());
    CHECK(refusal(sources).empty());
    auto packed = std::make_unique<PackedLinear>(sources, bias, isa, use);
    // Ranges that split parts in the middle, out of order.
    const int64_t half = packed->num_packed_tiles() / 2;
    packed->pack_tiles(half, packed->num_packed_tiles());
    packed->pack_tiles(0, half);
    return packed;
}

// Columns past the last one of an output row, which no kernel may write.
constexpr int64_t kGuard = 5;

// The place of rounding the rows of dense products: once for all tasks, or in each task.
enum class Rounding : uint8_t { once, in_tasks };

// The outputs of the layer, [rows, N + kGuard].
std::vector<float> multiply(const PackedLinear& packed, const std::vector<float>& x, int64_t rows,
                            Isa isa, int64_t threads, Rounding rounding = Rounding::once) {
    const int64_t depth = packed.packed_tiles()->depth;
    const int64_t columns = packed.packed_tiles()->rows;
    const int64_t row_bytes = quantized_row_bytes(depth);
    const Memory quantized_rows = poisoned(static_cast<size_t>(rows * row_bytes));
    std::vector<float> out(static_cast<size_t>(rows * (columns + kGuard)), 12345.0f);
    Arguments arguments;
    arguments.object = packed.packed_tiles();
    arguments.tensor[0] = view(const_cast<float*>(x.data()), DType::f32, rows, depth, depth);
    const TensorView result = view(out.data(), DType::f32, rows, columns, columns + kGuard);
    if (packed.has_dense()) {
        arguments.tensor[1] = result;
        arguments.integer[0] = threads;
        const int64_t rounded_bytes = packed.packed_tiles()->rounded_row_bytes;
        const Memory rounded = poisoned(static_cast<size_t>(rows * rounded_bytes));
        if (rounding == Rounding::once) {
            arguments.tensor[2] =
                view(rounded.get(), DType::u8, rows, rounded_bytes, rounded_bytes);
        }
        run(isa, "linear_dense", arguments);
    }
    if (packed.has_affine()) {
        const TensorView quanta = view(quantized_rows.get(), DType::u8, rows, row_bytes, row_bytes);
        arguments.tensor[1] = quanta;
        run(isa, "quantize_rows", arguments);
        arguments.tensor[0] = quanta;
        arguments.tensor[1] = result;
        arguments.integer[0] = threads;
        run(isa, "linear_affine", arguments);
    }
    return out;
}

bool same(float a, float b) {
    return std::isnan(a) ? std::isnan(b) : a == b;
}

float expected(const Matrix& matrix, int64_t n, const float* x,
               const std::vector<QuantizedUnit>& quanta, Isa isa, Use use) {
    if (is_fixed(matrix, isa, use == Use::rounded_products))
        return fixed_product(matrix, n, x);
    if (matrix.dense.empty() && is_paired(matrix, isa))
        return paired_product(matrix, n, quanta);
    if (matrix.dense.empty())
        return affine_product(matrix, n, quanta, isa);
    if (matrix.dense_type == DType::bf16 && has_bf16_tiles(isa))
        return tile_product(matrix.depth, x, [&](int64_t k) { return matrix.weight(n, k); });
    if (matrix.dense_type == DType::bf16 && has_bf16_pairs(isa))
        return pair_product(matrix, n, x);
    return dense_product(matrix, n, x, isa);
}

void check_product(const std::vector<Matrix>& parts, const std::vector<float>& bias,
                   const std::vector<float>& x, int64_t rows, Isa isa, Use use = Use::products) {
    const int64_t depth = parts.front().depth;
    const auto packed = pack(parts, bias.empty() ? nullptr : bias.data(), isa, use);
    const std::vector<float> out = multiply(*packed, x, rows, isa, 1 + rows % 7);
    const auto in_tasks = multiply(*packed, x, rows, isa, 1 + rows % 7, Rounding::in_tasks);
    CHECK(std::memcmp(out.data(), in_tasks.data(), out.size() * sizeof(float)) == 0);
    const int64_t stride = packed->packed_tiles()->rows + kGuard;
    for (int64_t m = 0; m < rows; ++m) {
        const float* row = x.data() + m * depth;
        const std::vector<QuantizedUnit> quanta = quantized(row, depth, isa);
        int64_t column = 0;
        for (const Matrix& part : parts) {
            for (int64_t n = 0; n < part.rows; ++n, ++column) {
                float want = expected(part, n, row, quanta, isa, use);
                if (!bias.empty())
                    want += bias[static_cast<size_t>(column)];
                CHECK(same(out[static_cast<size_t>(m * stride + column)], want));
            }
        }
        for (; column < stride; ++column) {
            CHECK(out[static_cast<size_t>(m * stride + column)] == 12345.0f);
        }
    }
}

std::vector<float> random_x(std::mt19937& random, int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> x(static_cast<size_t>(count));
    for (auto& value : x)
        value = normal(random);
    return x;
}

void every_affine_format_multiplies_exactly() {
    std::mt19937 random(1);
    // 9 units: one past the end of a super scale. 37 rows: the last packed tile has 5.
    constexpr int64_t kDepth = 288;
    for (const Isa isa : isas()) {
        for (const Format& format : kAffineFormats) {
            for (const int64_t rows : {1, 2, 3, 5, 8, 19, 34, 101}) {
                const Matrix matrix = random_affine(random, format, 37, kDepth);
                check_product({matrix}, {}, random_x(random, rows * kDepth), rows, isa);
            }
        }
    }
}

void minima_of_long_rows_multiply_exactly() {
    std::mt19937 random(8);
    constexpr int64_t kDepth = 41 * kUnit; // more units than one product of minima covers
    for (const Isa isa : isas()) {
        for (const Format& format : kAffineFormats) {
            for (const int64_t rows : {1, 19}) {
                const Matrix matrix = random_affine(random, format, 21, kDepth);
                check_product({matrix}, {}, random_x(random, rows * kDepth), rows, isa);
            }
        }
    }
}

void pairs_of_units_multiply_exactly() {
    std::mt19937 random(9);
    for (const Isa isa : isas()) {
        for (Format format : kAffineFormats) {
            if (format.bits != 4 || format.group != kUnit)
                continue;
            for (const int zero_point : {0, 7, 8, 15}) {
                format.zero_point = format.minimum ? 0 : zero_point;
                for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 19, 101}) {
                    const Matrix matrix = random_affine(random, format, 37, 320);
                    std::vector<float> x = random_x(random, rows * 320);
                    // A unit that dominates all others, and one that is negligible.
                    for (int64_t k = 0; k < kUnit && rows > 4; ++k) {
                        x[static_cast<size_t>(3 * 320 + 64 + k)] *= 1e4f;
                        x[static_cast<size_t>(4 * 320 + k)] *= 1e-9f;
                    }
                    check_product({matrix}, random_x(random, 37), x, rows, isa);
                }
            }
        }
    }
}

// The error of paired scales is far below that of rounded activations: products of a row with
// paired scales, and with the exact scales of embeddings, hardly differ.
void paired_scales_are_close_to_exact_scales() {
    std::mt19937 random(10);
    constexpr int64_t kDepth = 1024, kRows = 64;
    for (const Isa isa : isas()) {
        const Matrix matrix = random_affine(random, kAffineFormats[1], kRows, kDepth);
        const std::vector<float> x = random_x(random, kDepth);
        const auto paired = multiply(*pack({matrix}, nullptr, isa), x, 1, isa, 1);
        const auto exact = multiply(*pack({matrix}, nullptr, isa, Use::rows), x, 1, isa, 1);
        double off = 0.0, rounding = 0.0;
        for (int64_t n = 0; n < kRows; ++n) {
            double want = 0.0;
            for (int64_t k = 0; k < kDepth; ++k)
                want += double{matrix.weight(n, k)} * x[static_cast<size_t>(k)];
            off +=
                std::pow(double{paired[static_cast<size_t>(n)]} - exact[static_cast<size_t>(n)], 2);
            rounding += std::pow(want - exact[static_cast<size_t>(n)], 2);
        }
        CHECK(off < 1e-2 * rounding);
        CHECK(!has_paired_scales(isa) || off > 0.0);
    }
}

void non_finite_weights_give_non_finite_results() {
    std::mt19937 random(11);
    Matrix matrix = random_affine(random, kAffineFormats[0], 3, 64);
    const uint16_t bad[] = {f32_to_f16(std::numeric_limits<float>::infinity()),
                            f32_to_f16(std::nanf(""))};
    std::memcpy(matrix.scale.data() + 2, &bad[0], 2);     // row 0, its second unit
    std::memcpy(matrix.scale.data() + 2 * 2, &bad[1], 2); // row 1, its first unit
    for (const Isa isa : isas()) {
        const auto out = multiply(*pack({matrix}, nullptr, isa), random_x(random, 64), 1, isa, 1);
        CHECK(!std::isfinite(out[0]) && !std::isfinite(out[1]) && std::isfinite(out[2]));
    }
}

void extreme_integers_are_summed_exactly() {
    std::mt19937 random(2);
    for (const Isa isa : isas()) {
        for (const Format& format : kAffineFormats) {
            Matrix matrix = random_affine(random, format, 16, 64);
            // Rows of the largest quants, the smallest, and both in turn.
            for (size_t i = 0; i < matrix.q.size(); ++i) {
                const size_t row = i / 64;
                const bool high = row < 4 || (row >= 8 && (i / (row - 7)) % 2 == 0);
                matrix.q[i] = static_cast<uint8_t>(high ? format.largest : format.smallest());
            }
            pack_nibbles(matrix);
            std::vector<float> x;
            for (int64_t m = 0; m < 20; ++m) {
                for (int64_t k = 0; k < 64; ++k) {
                    x.push_back(m == 0 || (m > 1 && (k / (m - 1)) % 2 == 0) ? 127.0f : -127.0f);
                }
            }
            check_product({matrix}, {}, x, 20, isa);
        }
    }
}

void extreme_activations_are_quantized_as_defined() {
    std::mt19937 random(3);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const Isa isa : isas()) {
        std::vector<float> x = random_x(random, 10 * 64);
        std::fill_n(x.begin(), 64, 0.0f);
        std::fill_n(x.begin() + 64, 64, -0.0f);
        for (int k = 0; k < 64; ++k)
            x[static_cast<size_t>(128 + k)] = 1e-44f * static_cast<float>(k % 5);
        for (int k = 0; k < 64; ++k)
            x[static_cast<size_t>(192 + k)] = 3e35f - 1e34f * static_cast<float>(k);
        for (int k = 0; k < 64; ++k)
            x[static_cast<size_t>(256 + k)] = (k == 0) ? 127.0f : 0.5f + static_cast<float>(k);
        x[5 * 64 + 7] = std::nanf("");
        x[6 * 64 + 40] = -kInfinity;
        const Memory memory = poisoned(static_cast<size_t>(10 * quantized_row_bytes(64)));
        Arguments arguments;
        arguments.tensor[0] = view(x.data(), DType::f32, 10, 64, 64);
        arguments.tensor[1] =
            view(memory.get(), DType::u8, 10, quantized_row_bytes(64), quantized_row_bytes(64));
        run(isa, "quantize_rows", arguments);
        for (int64_t m = 0; m < 10; ++m) {
            const auto* units = reinterpret_cast<const QuantizedUnit*>(
                static_cast<const uint8_t*>(memory.get()) + m * quantized_row_bytes(64));
            const std::vector<QuantizedUnit> want = quantized(x.data() + m * 64, 64, isa);
            for (size_t u = 0; u < want.size(); ++u) {
                CHECK(std::memcmp(units[u].value, want[u].value, kUnit) == 0);
                CHECK(same(units[u].scale, want[u].scale));
                CHECK(same(units[u].scaled_sum, want[u].scaled_sum));
                CHECK(units[u].sum[0] == want[u].sum[0] && units[u].sum[1] == want[u].sum[1]);
            }
        }
        // And no product hides that a row was not finite.
        const Matrix matrix = random_affine(random, kAffineFormats[1], 16, 64);
        const auto packed = pack({matrix}, nullptr, isa);
        const std::vector<float> out = multiply(*packed, x, 10, isa, 1);
        for (int64_t m = 0; m < 10; ++m) {
            const float answer = out[static_cast<size_t>(m * (16 + kGuard))];
            CHECK(std::isfinite(answer) == (m != 5 && m != 6));
        }
    }
}

void parts_of_different_kinds_share_one_output() {
    std::mt19937 random(4);
    constexpr int64_t kDepth = 96;
    for (const Isa isa : isas()) {
        const std::vector<Matrix> parts{
            random_affine(random, kAffineFormats[2], 40, kDepth),
            random_dense(random, DType::f32, 3, kDepth),
            random_affine(random, kAffineFormats[7], 17, kDepth),
            random_dense(random, DType::bf16, 21, kDepth),
            random_affine(random, kAffineFormats[9], 1, kDepth),
        };
        const std::vector<float> bias = random_x(random, 40 + 3 + 17 + 21 + 1);
        for (const int64_t rows : {1, 6, 20}) {
            check_product(parts, bias, random_x(random, rows * kDepth), rows, isa);
            check_product(parts, {}, random_x(random, rows * kDepth), rows, isa);
        }
    }
}

void dense_products_sum_in_the_documented_order() {
    std::mt19937 random(5);
    for (const Isa isa : isas()) {
        for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
            for (const int64_t depth : {1, 31, 64, 101}) {
                for (const int64_t rows : {1, 2, 4, 7, 16, 40, 99}) {
                    const Matrix matrix = random_dense(random, type, 35, depth);
                    check_product({matrix}, {}, random_x(random, rows * depth), rows, isa);
                }
            }
        }
    }
}

// Depths end within a pair, a unit and a group.
void rounded_products_of_float16_are_as_documented() {
    std::mt19937 random(12);
    for (const Isa isa : isas()) {
        for (const int64_t depth : {1, 31, 64, 101, 160}) {
            for (const int64_t rows : {1, 2, 4, 7, 16, 40, 99}) {
                std::vector<float> x = random_x(random, rows * depth);
                x[0] *= 1e4f;
                const std::vector<Matrix> parts{random_dense(random, DType::f16, 35, depth),
                                                random_dense(random, DType::bf16, 17, depth),
                                                random_dense(random, DType::f16, 16, depth)};
                check_product(parts, random_x(random, 68), x, rows, isa, Use::rounded_products);
            }
        }
    }
}

void extreme_rounded_products_do_not_overflow() {
    constexpr int64_t kDepth = 128;
    std::mt19937 random(13);
    for (const Isa isa : isas()) {
        Matrix matrix = random_dense(random, DType::f16, 16, kDepth);
        std::fill(matrix.dense.begin(), matrix.dense.end(), -2.0f);
        std::fill(matrix.dense_half.begin(), matrix.dense_half.end(), f32_to_f16(-2.0f));
        std::vector<float> x(kDepth, 3e30f);
        std::fill(x.begin() + kFixedGroup, x.end(), 1e-40f);
        check_product({matrix}, {}, x, 1, isa, Use::rounded_products);
    }
}

// Sets weights of a row of a bf16 matrix.
void fill_bf16(Matrix& matrix, int64_t row, int64_t begin, int64_t end, float value) {
    for (int64_t k = begin; k < end; ++k) {
        const auto at = static_cast<size_t>(row * matrix.depth + k);
        matrix.dense_half[at] = f32_to_bf16(value);
        matrix.dense[at] = bf16_to_f32(matrix.dense_half[at]);
    }
}

void extreme_bf16_weights_give_finite_products() {
    constexpr int64_t kDepth = 128;
    std::mt19937 random(16);
    for (const Isa isa : isas()) {
        Matrix matrix = random_dense(random, DType::bf16, 16, kDepth);
        fill_bf16(matrix, 0, 0, kDepth, 0x1p-110f);
        fill_bf16(matrix, 1, 0, kFixedGroup, 0x1p-101f);
        fill_bf16(matrix, 2, 0, kFixedGroup, -0x1p-99f);
        fill_bf16(matrix, 3, 0, kDepth, 1e36f);
        fill_bf16(matrix, 4, 0, kDepth, 0.0f);
        const std::vector<float> x = random_x(random, kDepth);
        check_product({matrix}, {}, x, 1, isa);
        const auto out = multiply(*pack({matrix}, nullptr, isa), x, 1, isa, 1);
        CHECK(std::all_of(out.begin(), out.begin() + 16, [](float y) { return std::isfinite(y); }));
        CHECK(out[4] == 0.0f);
    }
}

// The error of rounded products is that of activations in float16, not more.
void rounded_products_lose_no_more_than_float16() {
    std::mt19937 random(14);
    constexpr int64_t kDepth = 768, kRows = 128;
    for (const Isa isa : isas()) {
        const Matrix matrix = random_dense(random, DType::f16, kRows, kDepth);
        const std::vector<float> x = random_x(random, kDepth);
        const auto out =
            multiply(*pack({matrix}, nullptr, isa, Use::rounded_products), x, 1, isa, 1);
        double off = 0.0, of_float16 = 0.0;
        for (int64_t n = 0; n < kRows; ++n) {
            double want = 0.0, halves = 0.0;
            for (int64_t k = 0; k < kDepth; ++k) {
                const float value = x[static_cast<size_t>(k)];
                want += double{matrix.weight(n, k)} * value;
                halves += double{matrix.weight(n, k)} * f16_to_f32(f32_to_f16(value));
            }
            off += std::pow(want - out[static_cast<size_t>(n)], 2);
            of_float16 += std::pow(want - halves, 2);
        }
        CHECK(off < 2.0 * of_float16);
    }
}

void rounded_products_of_rows_that_are_not_finite_are_nan() {
    std::mt19937 random(15);
    for (const Isa isa : isas()) {
        if (!has_int16_products(isa))
            continue;
        Matrix matrix = random_dense(random, DType::f16, 3, 100);
        matrix.dense_half[70] = f32_to_f16(std::numeric_limits<float>::infinity());
        matrix.dense_half[100] = f32_to_f16(std::nanf(""));
        std::vector<float> x = random_x(random, 3 * 100);
        x[99] = std::nanf("");
        x[150] = -std::numeric_limits<float>::infinity();
        const auto packed = pack({matrix}, nullptr, isa, Use::rounded_products);
        const auto out = multiply(*packed, x, 3, isa, 1);
        for (int64_t m = 0; m < 3; ++m) {
            for (int64_t n = 0; n < 3; ++n) {
                const float value = out[static_cast<size_t>(m * (3 + kGuard) + n)];
                CHECK(std::isnan(value) == (m < 2 || n < 2));
            }
        }
    }
}

// The outputs for prompt tokens, [rows, N + kGuard].
std::vector<float> multiply_prompts(const PackedLinear& packed, const std::vector<float>& x,
                                    int64_t rows, Isa isa, int64_t threads) {
    const int64_t depth = packed.packed_tiles()->depth;
    const int64_t columns = packed.packed_tiles()->rows, row_bytes = bf16_row_bytes(depth);
    const Memory memory = poisoned(static_cast<size_t>(rows * row_bytes));
    std::vector<float> out(static_cast<size_t>(rows * (columns + kGuard)), 12345.0f);
    Arguments arguments;
    arguments.object = packed.packed_tiles();
    arguments.tensor[0] = view(const_cast<float*>(x.data()), DType::f32, rows, depth, depth);
    arguments.tensor[1] = view(memory.get(), DType::u8, rows, row_bytes, row_bytes);
    run(isa, "round_rows", arguments);
    arguments.tensor[0] = arguments.tensor[1];
    arguments.tensor[1] = view(out.data(), DType::f32, rows, columns, columns + kGuard);
    arguments.integer[0] = threads;
    run(isa, "linear_prompt", arguments);
    return out;
}

// `packed_for`: the ISA whose layout the weights have.
void check_prompts(const std::vector<Matrix>& parts, const std::vector<float>& bias,
                   const std::vector<float>& x, int64_t rows, Isa isa, Isa packed_for) {
    const auto packed = pack(parts, bias.empty() ? nullptr : bias.data(), packed_for);
    const std::vector<float> out = multiply_prompts(*packed, x, rows, isa, 1 + rows % 7);
    const int64_t stride = packed->packed_tiles()->rows + kGuard;
    int64_t column = 0;
    for (const Matrix& part : parts) {
        for (int64_t n = 0; n < part.rows; ++n, ++column) {
            const auto weights = part.dense.empty()
                                     ? prompt_weights(part, n, is_paired(part, packed_for))
                                     : std::vector<float>();
            for (int64_t m = 0; m < rows; ++m) {
                const float got = out[static_cast<size_t>(m * stride + column)];
                if (weights.empty()) {
                    CHECK(got == 12345.0f); // linear_dense writes it
                    continue;
                }
                float want = tile_product(part.depth, x.data() + m * part.depth, [&](int64_t k) {
                    return weights[static_cast<size_t>(k)];
                });
                if (!bias.empty())
                    want += bias[static_cast<size_t>(column)];
                CHECK(same(got, want));
            }
        }
    }
    for (; column < stride; ++column) {
        for (int64_t m = 0; m < rows; ++m)
            CHECK(out[static_cast<size_t>(m * stride + column)] == 12345.0f);
    }
}

// Three packed tiles: a panel of two and one of one. Row counts end within a tile and after it.
void prompts_multiply_every_format_as_documented() {
    std::mt19937 random(16);
    for (const Isa isa : isas()) {
        if (!has_bf16_tiles(isa))
            continue;
        for (const Isa packed_for : {isa, Isa::avx512_bf16}) {
            for (const Format& format : kAffineFormats) {
                for (const int64_t depth : {64, 288, 320}) {
                    for (const int64_t rows : {1, 16, 17, 32, 41}) {
                        const Matrix matrix = random_affine(random, format, 37, depth);
                        check_prompts({matrix}, random_x(random, 37),
                                      random_x(random, rows * depth), rows, isa, packed_for);
                    }
                }
            }
        }
    }
}

// Depths of more than one division, and rows of more than one block.
void prompts_of_any_size_multiply_as_documented() {
    std::mt19937 random(17);
    for (const Isa isa : isas()) {
        if (!has_bf16_tiles(isa))
            continue;
        for (const Isa packed_for : {isa, Isa::avx512_bf16}) {
            for (const size_t format : {0, 1, 4, 9}) {
                const Matrix deep = random_affine(random, kAffineFormats[format], 37, 4160);
                check_prompts({deep}, {}, random_x(random, 35 * 4160), 35, isa, packed_for);
                const Matrix wide = random_affine(random, kAffineFormats[format], 100, 64);
                check_prompts({wide}, {}, random_x(random, 530 * 64), 530, isa, packed_for);
            }
        }
    }
}

void prompts_write_the_columns_of_integer_parts_only() {
    std::mt19937 random(18);
    constexpr int64_t kDepth = 96;
    for (const Isa isa : isas()) {
        if (!has_bf16_tiles(isa))
            continue;
        const std::vector<Matrix> parts{
            random_affine(random, kAffineFormats[2], 40, kDepth),
            random_dense(random, DType::f32, 3, kDepth),
            random_affine(random, kAffineFormats[7], 17, kDepth),
            random_dense(random, DType::bf16, 21, kDepth),
            random_affine(random, kAffineFormats[9], 1, kDepth),
        };
        for (const int64_t rows : {1, 20})
            check_prompts(parts, random_x(random, 82), random_x(random, rows * kDepth), rows, isa,
                          isa);
    }
}

void prompts_that_are_not_finite_affect_no_other_row() {
    std::mt19937 random(19);
    for (const Isa isa : isas()) {
        if (!has_bf16_tiles(isa))
            continue;
        const Matrix matrix = random_affine(random, kAffineFormats[1], 20, 64);
        std::vector<float> x = random_x(random, 5 * 64);
        x[64 + 7] = std::nanf("");
        x[3 * 64 + 40] = -std::numeric_limits<float>::infinity();
        const auto out = multiply_prompts(*pack({matrix}, nullptr, isa), x, 5, isa, 1);
        for (int64_t m = 0; m < 5; ++m) {
            for (int64_t n = 0; n < 20; ++n) {
                const float value = out[static_cast<size_t>(m * (20 + kGuard) + n)];
                CHECK(std::isfinite(value) == (m != 1 && m != 3));
            }
        }
    }
}

void embedding_returns_the_exact_rows(const Matrix& matrix, Isa isa) {
    const auto packed = pack({matrix}, nullptr, isa, Use::rows);
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < matrix.rows; ++token) {
        tokens.push_back(static_cast<int32_t>(matrix.rows) - 1 - token);
    }
    const auto count = static_cast<int64_t>(tokens.size());
    std::vector<float> out(static_cast<size_t>(count * matrix.depth), 12345.0f);
    Arguments arguments;
    arguments.object = packed->packed_tiles();
    arguments.tensor[0] = view(tokens.data(), DType::i32, count, 1, 1);
    arguments.tensor[1] = view(out.data(), DType::f32, count, matrix.depth, matrix.depth);
    arguments.real[0] = 1.0f;
    run(isa, "embedding", arguments);
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t k = 0; k < matrix.depth; ++k) {
            const float want = matrix.weight(tokens[static_cast<size_t>(i)], k);
            CHECK(out[static_cast<size_t>(i * matrix.depth + k)] == want);
        }
    }
}

void embedding_gathers_from_any_packed_matrix() {
    std::mt19937 random(6);
    for (const Isa isa : isas()) {
        for (const Format& format : kAffineFormats) {
            embedding_returns_the_exact_rows(random_affine(random, format, 41, 288), isa);
        }
        for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
            embedding_returns_the_exact_rows(random_dense(random, type, 41, 33), isa);
        }
    }
}

void large_multipliers_fall_back_to_exact_floats() {
    std::mt19937 random(7);
    Matrix matrix = random_affine(random, kAffineFormats[2], 20, 256);
    matrix.scale[3] = 200; // does not fit the packed int8
    matrix.scale_value[3] = 200.0f * f16_to_f32(matrix.super_scale[0]);
    for (const Isa isa : isas()) {
        check_product({matrix}, {}, random_x(random, 2 * 256), 2, isa);
    }
}

void invalid_sources_are_refused_with_their_part() {
    std::mt19937 random(8);
    const Matrix matrix = random_affine(random, kAffineFormats[0], 4, 64);
    const auto refused = [&](auto change) {
        MatrixSource source = matrix.source();
        change(source);
        return !refusal(std::span(&source, 1)).empty();
    };
    CHECK(!refused([](MatrixSource&) {}));
    CHECK(refused([](MatrixSource& s) { s.depth = 48; }));
    CHECK(refused([](MatrixSource& s) { s.group = 64; }));
    CHECK(refused([](MatrixSource& s) { s.bits = 3; }));
    CHECK(refused([](MatrixSource& s) { s.rows = 0; }));
    CHECK(refused([](MatrixSource& s) { s.zero_point = 256; }));
    CHECK(refused([](MatrixSource& s) { s.scale_dtype = DType::u8; }));
    CHECK(refused([](MatrixSource& s) { s.q = nullptr; }));
    const Matrix other = random_affine(random, kAffineFormats[0], 4, 96);
    const std::vector<MatrixSource> parts{matrix.source(), other.source()};
    CHECK(refusal(parts).starts_with("part 1"));
}

} // namespace

// linear_test [ISA...]
int main(int count, char** arguments) {
    choose_isas(count - 1, arguments + 1);
    every_affine_format_multiplies_exactly();
    minima_of_long_rows_multiply_exactly();
    pairs_of_units_multiply_exactly();
    paired_scales_are_close_to_exact_scales();
    non_finite_weights_give_non_finite_results();
    extreme_integers_are_summed_exactly();
    extreme_activations_are_quantized_as_defined();
    parts_of_different_kinds_share_one_output();
    dense_products_sum_in_the_documented_order();
    rounded_products_of_float16_are_as_documented();
    extreme_rounded_products_do_not_overflow();
    extreme_bf16_weights_give_finite_products();
    rounded_products_lose_no_more_than_float16();
    rounded_products_of_rows_that_are_not_finite_are_nan();
    prompts_multiply_every_format_as_documented();
    prompts_of_any_size_multiply_as_documented();
    prompts_write_the_columns_of_integer_parts_only();
    prompts_that_are_not_finite_affect_no_other_row();
    embedding_gathers_from_any_packed_matrix();
    large_multipliers_fall_back_to_exact_floats();
    invalid_sources_are_refused_with_their_part();
    return 0;
}
