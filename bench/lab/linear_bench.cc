// Measures the linear kernels of one ISA over the shapes of small models, without Python.
//
//     linear_bench ISA [THREADS [FILTER [M]]]
//     linear_bench ISA THREADS step [M]
//     linear_bench ISA THREADS prompts [M [PRODUCTS]]
//
// The first form rotates copies of one shape through more memory than the last-level cache holds,
// and prints GB/s of packed weights and multiply-accumulates per cycle and thread, for the best
// round. The second runs the products of a whole decode step in order, layer by layer and then the
// LM head, and prints medians: a shape after other shapes has another speed than a shape after
// itself. The third compares prompt tokens in the bf16 tiles of ISA with the integer products of
// the ISA PRODUCTS (by default ISA), rounding of activations included, and prints the
// floating-point operations per second of the tiles.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/isa/isa.h"
#include "cpu/pack/pack.h"
#include "cpu/simd/half.h"
#include "isa_argument.h"
#include "plan/aligned_buffer.h"
#include "plan/thread_pool.h"

namespace {

using namespace penstock;
using namespace penstock::cpu;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Wall time for several threads; for one thread its CPU time, which a busy machine disturbs less.
double now_s(int threads) {
    if (threads > 1)
        return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Takes three cycles of dependent instructions.
inline void three_cycles(uint64_t& value) {
#if defined(__x86_64__)
    asm volatile("imul %0, %0" : "+r"(value));
#else
    for (int i = 0; i < 3; ++i) {
        value += value;
        asm volatile("" : "+r"(value)); // forces one addition after the other
    }
#endif
}

// Cycles per nanosecond, from a chain of dependent instructions.
double clock_ghz() {
    double best = 1e9;
    for (int trial = 0; trial < 20; ++trial) {
        uint64_t value = 3;
        const double begin = now_s(1);
        for (int i = 0; i < 1000000; ++i)
            three_cycles(value);
        best = std::min(best, now_s(1) - begin);
    }
    return 3e6 / best / 1e9;
}

struct Shape {
    const char* name;
    const char* kind;
    int64_t rows;
    int64_t depth;
};

constexpr uint8_t kIq4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                              129, 141, 153, 166, 181, 197, 217, 241}; // quants of IQ4_XS

constexpr Shape kShapes[] = {
    {"135M qkv", "q4_1", 960, 576},        {"135M o", "q4_1", 576, 576},
    {"135M gate-up", "q4_1", 3072, 576},   {"135M down", "q4_1", 576, 1536},
    {"135M head", "q8_0", 49152, 576},     {"1.5B qkv", "q4_k", 2048, 1536},
    {"1.5B gate-up", "q4_k", 17920, 1536}, {"1.5B down", "q6_k", 1536, 8960},
    {"1.5B down", "q4_k", 1536, 8960},     {"135M gate-up", "q4_0", 3072, 576},
    {"135M gate-up", "q8_0", 3072, 576},   {"135M gate-up", "f32", 3072, 576},
    {"135M gate-up", "f16", 3072, 576},    {"135M gate-up", "bf16", 3072, 576},
    {"1.5B gate-up", "q5_k", 17920, 1536}, {"1.5B gate-up", "q2_k", 17920, 1536},
    {"1.5B gate-up", "q3_k", 17920, 1536}, {"1.5B gate-up", "iq4_xs", 17920, 1536},
    {"135M gate-up", "f16r", 3072, 576},   {"tower qkv", "bf16", 2304, 768},
    {"tower qkv", "f16r", 2304, 768},      {"tower o", "bf16", 768, 768},
    {"tower o", "f16r", 768, 768},         {"tower down", "bf16", 768, 3072},
    {"tower down", "f16r", 768, 3072},
};

// the first kStepShapes shapes form a step of the 135M model, LM head last
constexpr size_t kStepShapes = 5;
constexpr size_t kStepLayers = 30;

std::vector<uint8_t> noise(size_t bytes) {
    std::vector<uint8_t> data(bytes);
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        const uint64_t value = random();
        std::memcpy(data.data() + i, &value, 8);
    }
    return data;
}

struct Arrays {
    std::vector<uint8_t> q;
    std::vector<uint16_t> halves;
    std::vector<uint8_t> multipliers;
    std::vector<float> floats;
};

MatrixSource source_of(const Shape& shape, Arrays& arrays) {
    const std::string kind = shape.kind;
    const size_t count = static_cast<size_t>(shape.rows * shape.depth);
    MatrixSource source;
    source.rows = shape.rows;
    source.depth = shape.depth;
    if (kind[0] == 'f' || kind[0] == 'b') {
        arrays.floats.assign(count, 0.01f);
        arrays.halves.assign(count, kind[0] == 'f' ? uint16_t{0x2000} : uint16_t{0x3c00});
        source.dense_dtype = kind == "f32" ? DType::f32 : kind[0] == 'f' ? DType::f16 : DType::bf16;
        source.dense = kind == "f32" ? static_cast<const void*>(arrays.floats.data())
                                     : static_cast<const void*>(arrays.halves.data());
        return source;
    }
    const bool table = kind == "iq4_xs", fine = kind == "q2_k" || kind == "q3_k";
    source.bits = fine || kind[1] == '4' ? 4 : 8;
    source.group = fine || kind == "q6_k" ? 16 : 32;
    arrays.q = noise(count * static_cast<size_t>(source.bits) / 8);
    if (kind == "q6_k" || kind == "q5_k") {
        for (auto& q : arrays.q)
            q &= kind == "q6_k" ? 63 : 31;
    }
    if (table) {
        for (auto& q : arrays.q)
            q = kIq4[q % 16];
    }
    arrays.halves.assign(count / 16, f32_to_f16(0.01f));
    arrays.multipliers = noise(count / 16);
    for (auto& value : arrays.multipliers)
        value &= 63;
    source.q = arrays.q.data();
    const bool two_level = table || kind[3] == 'k';
    source.scale = two_level ? static_cast<const void*>(arrays.multipliers.data())
                             : static_cast<const void*>(arrays.halves.data());
    source.scale_dtype = two_level ? DType::u8 : DType::f16;
    source.super_scale = two_level ? arrays.halves.data() : nullptr;
    source.zero_point = kind == "q4_0"            ? 8
                        : kind == "q8_0" || table ? 128
                        : kind == "q3_k"          ? 4
                        : kind == "q6_k"          ? 32
                                                  : 0;
    if (kind == "q4_1" || kind == "q2_k" || kind == "q4_k" || kind == "q5_k") {
        source.minimum = source.scale;
        source.minimum_dtype = source.scale_dtype;
        source.super_minimum = source.super_scale;
    }
    return source;
}

TensorView view(void* data, DType dtype, int64_t rows, int64_t columns) {
    TensorView result;
    result.data = data;
    result.dtype = dtype;
    result.rank = 2;
    result.shape = {rows, columns, 1, 1};
    result.stride = {columns, 1, 1, 1};
    return result;
}

// Packs one shape. The products of kind f16r may be rounded.
std::unique_ptr<PackedLinear> packed(const Shape& shape, const MatrixSource& source, Isa isa) {
    const Use use = shape.kind == std::string("f16r") ? Use::rounded_products : Use::products;
    auto linear = std::make_unique<PackedLinear>(std::span(&source, 1), nullptr, isa, use);
    linear->pack_tiles(0, linear->num_packed_tiles());
    return linear;
}

// The kernels that compute a product: of integers, of floats, or of prompt tokens and integers.
enum class Form : uint8_t { affine, dense, prompt };

// Multiplies `rows` rows by a matrix of one shape, rotating through its copies.
class Product {
  public:
    Product(const Shape& shape, Isa isa, int64_t rows, Form form, int threads)
        : x_(static_cast<size_t>(rows * shape.depth)),
          quantized_(static_cast<size_t>(rows * row_bytes(shape, form))),
          out_(static_cast<size_t>(rows * shape.rows)),
          rounded_(static_cast<size_t>(form == Form::dense ? rows * (bf16_row_bytes(shape.depth) +
                                                                     fixed_row_bytes(shape.depth))
                                                           : 0)),
          quantize_(form == Form::dense
                        ? nullptr
                        : kernels(isa).find(form == Form::affine ? "quantize_rows" : "round_rows")),
          linear_(kernels(isa).find(form == Form::affine  ? "linear_affine"
                                    : form == Form::dense ? "linear_dense"
                                                          : "linear_prompt")) {
        for (size_t i = 0; i < x_.size(); ++i)
            x_[i] = 0.01f * static_cast<float>((i * 7919) % 401) - 2;
        round_.tensor[0] = view(x_.data(), DType::f32, rows, shape.depth);
        round_.tensor[1] = view(quantized_.data(), DType::u8, rows, row_bytes(shape, form));
        multiply_.tensor[0] = round_.tensor[form == Form::dense ? 0 : 1];
        multiply_.tensor[1] = view(out_.data(), DType::f32, rows, shape.rows);
        multiply_.integer[0] = threads;
        if (form == Form::dense) {
            const int64_t bytes = bf16_row_bytes(shape.depth) + fixed_row_bytes(shape.depth);
            multiply_.tensor[2] = view(rounded_.data(), DType::u8, rows, bytes);
        }
    }
    void round(ThreadPool::Lease& lease) const {
        if (quantize_ != nullptr)
            lease.run(*quantize_, round_);
    }
    void multiply(ThreadPool::Lease& lease, const PackedLinear& weights) {
        multiply_.object = weights.packed_tiles();
        lease.run(*linear_, multiply_);
    }
    size_t workspace_bytes(const PackedLinear& weights) {
        multiply_.object = weights.packed_tiles();
        return linear_->workspace_bytes(multiply_);
    }
    int64_t tasks() const { return linear_->tasks(multiply_, 0); }

  private:
    static int64_t row_bytes(const Shape& shape, Form form) {
        return form == Form::prompt ? bf16_row_bytes(shape.depth)
                                    : quantized_row_bytes(shape.depth / 32 * 32);
    }

    std::vector<float> x_;
    AlignedBuffer quantized_;
    std::vector<float> out_;
    AlignedBuffer rounded_;
    const Kernel* quantize_;
    const Kernel* linear_;
    Arguments round_;
    Arguments multiply_;
};

void measure(const Shape& shape, Isa isa, int64_t only, double ghz, ThreadPool& pool) {
    Arrays arrays;
    const MatrixSource source = source_of(shape, arrays);
    std::vector<std::unique_ptr<PackedLinear>> copies;
    const auto packing = Clock::now();
    size_t total = 0;
    do {
        copies.push_back(packed(shape, source, isa));
        total += copies.back()->size_bytes();
    } while (total < (96u << 20));
    const double pack_s = seconds_since(packing);
    const double bits = 8.0 * static_cast<double>(copies[0]->size_bytes()) /
                        static_cast<double>(shape.rows * shape.depth);
    std::printf("%-13s %-5s N=%ld K=%ld: %.2f bits a weight, packs %.2f GB/s a thread\n",
                shape.name, shape.kind, shape.rows, shape.depth, bits,
                static_cast<double>(total) / pack_s / 1e9);
    const std::vector<int64_t> all{1, 2, 4, 8, 16, 32, 128, 512};
    for (const int64_t rows : only != 0 ? std::vector<int64_t>{only} : all) {
        const Form form = copies[0]->has_affine() ? Form::affine : Form::dense;
        Product product(shape, isa, rows, form, pool.threads());
        ThreadPool::Lease lease = pool.acquire(product.workspace_bytes(*copies[0]));
        product.round(lease);
        size_t next = 0;
        double best = 1e9;
        const auto start = Clock::now();
        while (seconds_since(start) < 0.3) {
            const double begin = now_s(pool.threads());
            const size_t calls = rows >= 128 ? 1 : std::min<size_t>(copies.size(), 32);
            for (size_t i = 0; i < calls; ++i) {
                product.multiply(lease, *copies[next]);
                next = (next + 1) % copies.size();
            }
            best = std::min(best, (now_s(pool.threads()) - begin) / static_cast<double>(calls));
        }
        std::printf("  M=%-4ld %8.1f us  %6.1f GB/s  %6.1f MAC/cycle/thread  (%ld tasks)\n", rows,
                    best * 1e6, static_cast<double>(copies[0]->size_bytes()) / best / 1e9,
                    static_cast<double>(rows * shape.rows * shape.depth) / best / 1e9 /
                        pool.threads() / ghz,
                    product.tasks());
        std::fflush(stdout);
    }
}

double median_of(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Measures a step: each shape once per layer, except the LM head, which comes last and once.
void measure_step(Isa isa, int64_t rows, ThreadPool& pool) {
    std::vector<Product> products;
    std::vector<std::vector<std::unique_ptr<PackedLinear>>> weights(kStepShapes);
    size_t workspace = 0;
    for (size_t k = 0; k < kStepShapes; ++k) {
        Arrays arrays;
        const MatrixSource source = source_of(kShapes[k], arrays);
        const size_t layers = k + 1 < kStepShapes ? kStepLayers : 1;
        while (weights[k].size() < layers)
            weights[k].push_back(packed(kShapes[k], source, isa));
        products.emplace_back(kShapes[k], isa, rows, Form::affine, pool.threads());
        workspace = std::max(workspace, products[k].workspace_bytes(*weights[k][0]));
    }
    std::vector<std::vector<double>> spent(kStepShapes);
    std::vector<double> whole;
    ThreadPool::Lease lease = pool.acquire(workspace);
    for (int step = 0; step < 100; ++step) {
        std::vector<double> now(kStepShapes);
        const auto begin = Clock::now();
        for (size_t layer = 0; layer < kStepLayers; ++layer) {
            for (size_t k = 0; k < kStepShapes; ++k) {
                if (k + 1 == kStepShapes && layer + 1 < kStepLayers)
                    continue;
                products[k].round(lease);
                const auto rounded = Clock::now();
                products[k].multiply(lease, *weights[k][layer % weights[k].size()]);
                now[k] += seconds_since(rounded);
            }
        }
        whole.push_back(seconds_since(begin));
        for (size_t k = 0; k < kStepShapes; ++k)
            spent[k].push_back(now[k]);
    }
    for (size_t k = 0; k < kStepShapes; ++k)
        std::printf("  %-13s x %-3zu %7.3f ms\n", kShapes[k].name, weights[k].size(),
                    1e3 * median_of(spent[k]));
    std::printf("  M=%-4ld with rounding %6.3f ms\n", rows, 1e3 * median_of(whole));
}

// Compares the products of prompt tokens in tiles with those of `base`, in alternation.
void measure_prompts(const Shape& shape, Isa isa, Isa base, int64_t only, ThreadPool& pool) {
    Arrays arrays;
    const auto weights = packed(shape, source_of(shape, arrays), base);
    if (!weights->has_affine())
        return;
    std::printf("%-13s %-6s N=%ld K=%ld\n", shape.name, shape.kind, shape.rows, shape.depth);
    const std::vector<int64_t> all{1, 16, 32, 64, 128, 256, 512};
    for (const int64_t rows : only != 0 ? std::vector<int64_t>{only} : all) {
        Product plain(shape, base, rows, Form::affine, pool.threads());
        Product tiles(shape, isa, rows, Form::prompt, pool.threads());
        const size_t workspace =
            std::max(plain.workspace_bytes(*weights), tiles.workspace_bytes(*weights));
        ThreadPool::Lease lease = pool.acquire(workspace);
        const auto seconds = [&](Product& product) {
            const double begin = now_s(pool.threads());
            product.round(lease);
            product.multiply(lease, *weights);
            return now_s(pool.threads()) - begin;
        };
        double best[2] = {1e9, 1e9};
        const auto start = Clock::now();
        do {
            best[0] = std::min(best[0], seconds(plain));
            best[1] = std::min(best[1], seconds(tiles));
        } while (seconds_since(start) < 0.5);
        std::printf("  M=%-4ld integers %9.1f us  tiles %9.1f us  %5.2f times as fast  "
                    "%.2f TFLOP/s a thread\n",
                    rows, 1e6 * best[0], 1e6 * best[1], best[0] / best[1],
                    2e-12 * static_cast<double>(rows * shape.rows * shape.depth) / best[1] /
                        pool.threads());
        std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::string wanted = argc > 1 ? argv[1] : "avx2";
    const std::string filter = argc > 3 ? argv[3] : "";
    const int64_t only = argc > 4 ? std::atol(argv[4]) : 0;
    const auto isa = lab::isa_argument(wanted);
    if (!isa)
        return 2;
    ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 1);
    const double ghz = clock_ghz();
    std::printf("%s, %d threads, %.2f GHz\n", wanted.c_str(), pool.threads(), ghz);
    if (filter == "step") {
        measure_step(*isa, only != 0 ? only : 1, pool);
        return 0;
    }
    if (filter == "prompts") {
        const auto base = lab::isa_argument(argc > 5 ? argv[5] : wanted);
        if (!base)
            return 2;
        for (const Shape& shape : kShapes)
            measure_prompts(shape, *isa, *base, only, pool);
        return 0;
    }
    for (const Shape& shape : kShapes) {
        const std::string name = std::string(shape.name) + " " + shape.kind;
        if (name.find(filter) != std::string::npos)
            measure(shape, *isa, only, ghz, pool);
    }
    return 0;
}
