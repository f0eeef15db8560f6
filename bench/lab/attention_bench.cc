// Measures paged_attention against the floors of its arithmetic and of its KV cache traffic, after
// checking each result against a double-precision sum.
//
//   attention_bench [ISA = avx2] [threads = 1] [H K D = 9 3 64] [FILTER]
//
// FILTER: measure only shapes whose name contains it.
//
// Columns: the shape; microseconds per call (median); GFLOP/s and the cache's GB/s over all
// threads. Compare with the FMA peak (lanes * 4 * GHz per core with two FMA units) and the copy
// bandwidth in the header, which the same threads measure over a buffer of the cache's size.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string_view>
#include <vector>

#include "cpu/attention/attention_split.h"
#include "cpu/isa/isa.h"
#include "cpu/simd/half.h"
#include "isa_argument.h"
#include "plan/thread_pool.h"

using namespace penstock;

namespace {

constexpr int64_t kBlockTokens = 16;

struct Heads {
    int64_t q, kv, dim;
};

struct Chunk {
    int64_t context, tokens;
};

template <class T>
TensorView view(std::vector<T>& data, DType dtype, std::vector<int64_t> shape) {
    TensorView result;
    result.data = data.data();
    result.dtype = dtype;
    result.rank = static_cast<int>(shape.size());
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
        result.shape[i] = shape[i];
        result.stride[i] = stride;
        stride *= shape[i];
    }
    return result;
}

// A step over scattered KV blocks of a random float16 cache.
struct Problem {
    Heads heads;
    std::vector<Chunk> chunks;
    std::vector<float> q, out, partials;
    std::vector<int32_t> starts{0}, contexts, tables;
    std::vector<uint16_t> keys, values;
    int64_t max_blocks = 0;
    Arguments call;

    Problem(Heads heads, std::vector<Chunk> chunks) : heads(heads), chunks(std::move(chunks)) {
        std::mt19937 random(1);
        std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
        int64_t blocks = 0;
        for (const Chunk& chunk : this->chunks) {
            starts.push_back(starts.back() + static_cast<int32_t>(chunk.tokens));
            contexts.push_back(static_cast<int32_t>(chunk.context));
            const int64_t own = (chunk.context + kBlockTokens - 1) / kBlockTokens;
            max_blocks = std::max(max_blocks, own);
            blocks += own;
        }
        std::vector<int32_t> order(static_cast<size_t>(blocks));
        for (size_t i = 0; i < order.size(); ++i)
            order[i] = static_cast<int32_t>(i);
        std::shuffle(order.begin(), order.end(), random);
        const auto rows = static_cast<int64_t>(this->chunks.size());
        tables.assign(static_cast<size_t>(rows * max_blocks), -1);
        size_t next = 0;
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t b = 0; b * kBlockTokens < contexts[static_cast<size_t>(r)]; ++b) {
                tables[static_cast<size_t>(r * max_blocks + b)] = order[next++];
            }
        }
        const auto fill = [&](auto& data, int64_t size, auto convert) {
            data.resize(static_cast<size_t>(size));
            for (auto& x : data)
                x = convert(uniform(random));
        };
        const int64_t tokens = starts.back(), width = heads.q * heads.dim;
        const int64_t cached = blocks * heads.kv * heads.dim * kBlockTokens;
        fill(q, tokens * width, [](float x) { return 3 * x; });
        fill(keys, cached, [](float x) { return cpu::f32_to_f16(x); });
        fill(values, cached, [](float x) { return cpu::f32_to_f16(x); });
        out.assign(q.size(), NAN);
        partials.assign(static_cast<size_t>(cpu::attention_partial_floats(
                            heads.q, heads.kv, heads.dim, max_blocks * kBlockTokens)) +
                            1,
                        NAN);
        call.tensor = {view(q, DType::f32, {tokens, width}),
                       view(starts, DType::i32, {rows + 1}),
                       view(contexts, DType::i32, {rows}),
                       view(tables, DType::i32, {rows, max_blocks}),
                       view(keys, DType::f16, {blocks, heads.kv, heads.dim, kBlockTokens}),
                       view(values, DType::f16, {blocks, heads.kv, kBlockTokens, heads.dim}),
                       view(out, DType::f32, {tokens, width}),
                       view(partials, DType::f32, {static_cast<int64_t>(partials.size()) - 1})};
        call.integer = {heads.q, heads.kv, heads.dim, 0};
        call.real = {1.0f / std::sqrt(static_cast<float>(heads.dim))};
    }

    // The largest error in the first, a middle and the last token, against double precision.
    double error() const {
        double worst = 0;
        for (int64_t token : {int64_t{0}, int64_t{starts.back() / 2}, int64_t{starts.back() - 1}}) {
            for (int64_t head = 0; head < heads.q; ++head) {
                worst = std::max(worst, head_error(token, head));
            }
        }
        return worst;
    }

    double head_error(int64_t token, int64_t head) const {
        size_t row = 0;
        while (starts[row + 1] <= token)
            ++row;
        const int64_t seen = contexts[row] - starts[row + 1] + token + 1;
        const int64_t dim = heads.dim, kv = head / (heads.q / heads.kv);
        const float* query = q.data() + (token * heads.q + head) * dim;
        std::vector<double> result(static_cast<size_t>(dim));
        double mass = 0;
        for (int64_t j = 0; j < seen; ++j) {
            const int64_t block = tables[row * static_cast<size_t>(max_blocks) +
                                         static_cast<size_t>(j / kBlockTokens)];
            const int64_t base = (block * heads.kv + kv) * dim * kBlockTokens;
            const int64_t offset = j % kBlockTokens;
            double score = 0;
            for (int64_t d = 0; d < dim; ++d) {
                const auto at = static_cast<size_t>(base + d * kBlockTokens + offset);
                score += query[d] * static_cast<double>(cpu::f16_to_f32(keys[at]));
            }
            const double weight = std::exp(score * call.real[0] - 40);
            mass += weight;
            for (int64_t d = 0; d < dim; ++d) {
                const auto at = static_cast<size_t>(base + offset * dim + d);
                result[static_cast<size_t>(d)] += weight * cpu::f16_to_f32(values[at]);
            }
        }
        double worst = 0;
        const float* got = out.data() + (token * heads.q + head) * dim;
        for (int64_t d = 0; d < dim; ++d) {
            const double error = std::abs(got[d] - result[static_cast<size_t>(d)] / mass);
            worst = error <= worst ? worst : error; // a NaN counts as the worst
        }
        return worst;
    }

    double flops() const {
        double keys_seen = 0;
        for (const Chunk& c : chunks) {
            keys_seen += static_cast<double>(c.tokens) *
                         (static_cast<double>(c.context) - 0.5 * static_cast<double>(c.tokens - 1));
        }
        return 4.0 * keys_seen * static_cast<double>(heads.q * heads.dim);
    }

    double cache_bytes() const {
        double tokens = 0;
        for (const Chunk& c : chunks)
            tokens += static_cast<double>(c.context);
        return tokens * static_cast<double>(heads.kv * heads.dim) * 2 * 2;
    }
};

double seconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Times {
    double wall_us, processor_us; // medians; processor_us: of the calling thread
};

template <class Body>
Times time_of(const Body& body) {
    std::vector<double> wall, processor;
    const double begin = seconds(CLOCK_MONOTONIC);
    while (wall.size() < 5 || seconds(CLOCK_MONOTONIC) - begin < 0.3) {
        const double w = seconds(CLOCK_MONOTONIC), p = seconds(CLOCK_THREAD_CPUTIME_ID);
        body();
        processor.push_back(1e6 * (seconds(CLOCK_THREAD_CPUTIME_ID) - p));
        wall.push_back(1e6 * (seconds(CLOCK_MONOTONIC) - w));
    }
    return {median(wall), median(processor)};
}

// Error bound for scores of magnitude 2 with operands, weights and values rounded to bf16.
constexpr double kPairsError = 0.02;

struct Measured {
    const Kernel& kernel;
    double max_error;
    std::string_view filter;
};

void measure(const char* name, const Measured& of, ThreadPool& pool, Heads heads,
             std::vector<Chunk> chunks) {
    if (std::string_view(name).find(of.filter) == std::string_view::npos)
        return;
    const Problem problem(heads, std::move(chunks));
    const Kernel& kernel = of.kernel;
    ThreadPool::Lease lease = pool.acquire(kernel.workspace_bytes(problem.call));
    lease.run(kernel, problem.call);
    const double error = problem.error();
    if (!(error < of.max_error)) {
        std::printf("%-22s WRONG by %g\n", name, error);
        std::exit(1);
    }
    const Times times = time_of([&] { lease.run(kernel, problem.call); });
    const double us = times.processor_us;
    std::printf("%-20s %9.1f us wall %9.1f us cpu %7.1f GFLOP/s %6.1f GB/s  phases %d tasks %lld\n",
                name, times.wall_us, us, problem.flops() / us * 1e-3,
                problem.cache_bytes() / us * 1e-3, kernel.phases(problem.call),
                static_cast<long long>(kernel.tasks(problem.call, 0)));
}

void measure_all(const Measured& kernel, ThreadPool& pool, Heads heads) {
    measure("prompt 512", kernel, pool, heads, {{512, 512}});
    measure("prompt 2048", kernel, pool, heads, {{2048, 2048}});
    measure("chunk 128 at 2048", kernel, pool, heads, {{2048, 128}});
    measure("tail 16 at 2048", kernel, pool, heads, {{2048, 16}});
    for (int64_t rows : {1, 16, 32}) {
        for (int64_t context : {128, 512, 2048, 8192}) {
            char name[64];
            std::snprintf(name, sizeof name, "decode %lldx%lld", static_cast<long long>(rows),
                          static_cast<long long>(context));
            measure(name, kernel, pool, heads,
                    std::vector<Chunk>(static_cast<size_t>(rows), {context, 1}));
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::string_view wanted = argc > 1 ? argv[1] : "avx2";
    const auto isa = lab::isa_argument(wanted);
    if (!isa)
        return 2;
    ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 1);
    const Heads heads = argc > 5 ? Heads{std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5])}
                                 : Heads{9, 3, 64};
    const bool rounds = cpu::has_bf16_pairs(*isa) || cpu::has_bf16_tiles(*isa);
    measure_all({*cpu::kernels(*isa).find("paged_attention"), rounds ? kPairsError : 1e-5,
                 argc > 6 ? argv[6] : ""},
                pool, heads);
    return 0;
}
