// Speed of the linear kernels of one level, over the shapes of small models, without Python.
//
//     linear_bench LEVEL [THREADS [FILTER [M]]]
//
// Weights are rotated through more memory than the last cache holds, as the layers of a model are.
// Prints GB/s of packed weights and multiply-accumulates per cycle and thread.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/half.h"
#include "cpu/level.h"
#include "cpu/pack.h"

namespace {

using namespace penstock;
using namespace penstock::cpu;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Wall time for a team; for one thread its own CPU time, which a busy machine disturbs less.
double now_s(int threads) {
    if (threads > 1)
        return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Cycles per nanosecond, from a chain of dependent multiplications of three cycles each.
double clock_ghz() {
    double best = 1e9;
    for (int trial = 0; trial < 20; ++trial) {
        uint64_t value = 3;
        const double begin = now_s(1);
        for (int i = 0; i < 1000000; ++i)
            asm volatile("imul %0, %0" : "+r"(value));
        best = std::min(best, now_s(1) - begin);
    }
    return 3e6 / best / 1e9;
}

// Threads that spin between runs: what a pool costs at best.
class Team {
  public:
    explicit Team(int size) : size_(size) {
        for (int i = 1; i < size; ++i) {
            threads_.emplace_back([this] { work(); });
        }
    }
    ~Team() {
        stop_ = true;
        generation_.fetch_add(1);
        for (auto& thread : threads_)
            thread.join();
    }
    void run(const Kernel& kernel, const Arguments& arguments) {
        for (int phase = 0; phase < kernel.phases(arguments); ++phase) {
            kernel_ = &kernel;
            arguments_ = &arguments;
            phase_ = phase;
            tasks_ = kernel.tasks(arguments, phase);
            next_.store(0);
            busy_.store(size_ - 1);
            generation_.fetch_add(1);
            drain();
            while (busy_.load() != 0) {
            }
        }
    }

  private:
    void drain() {
        alignas(64) static thread_local uint8_t scratch[1 << 20];
        Workspace workspace{scratch, sizeof scratch};
        for (int64_t task = next_.fetch_add(1); task < tasks_; task = next_.fetch_add(1)) {
            kernel_->run(*arguments_, phase_, task, workspace);
        }
    }
    void work() {
        int seen = 0;
        while (true) {
            while (generation_.load() == seen) {
            }
            ++seen;
            if (stop_)
                return;
            drain();
            busy_.fetch_sub(1);
        }
    }

    int size_;
    std::vector<std::thread> threads_;
    std::atomic<int> generation_{0};
    std::atomic<int> busy_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<bool> stop_{false};
    const Kernel* kernel_ = nullptr;
    const Arguments* arguments_ = nullptr;
    int phase_ = 0;
    int64_t tasks_ = 0;
};

struct Shape {
    const char* name;
    const char* kind;
    int64_t rows;
    int64_t depth;
};

constexpr Shape kShapes[] = {
    {"135M qkv", "q4_1", 960, 576},        {"135M o", "q4_1", 576, 576},
    {"135M gate-up", "q4_1", 3072, 576},   {"135M down", "q4_1", 576, 1536},
    {"135M head", "q8_0", 49152, 576},     {"1.5B qkv", "q4_k", 2048, 1536},
    {"1.5B gate-up", "q4_k", 17920, 1536}, {"1.5B down", "q6_k", 1536, 8960},
    {"1.5B down", "q4_k", 1536, 8960},     {"135M gate-up", "q4_0", 3072, 576},
    {"135M gate-up", "q8_0", 3072, 576},   {"135M gate-up", "f32", 3072, 576},
    {"135M gate-up", "f16", 3072, 576},    {"135M gate-up", "bf16", 3072, 576},
    {"1.5B gate-up", "q5_k", 17920, 1536},
};

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
        arrays.halves.assign(count, kind == "f16" ? uint16_t{0x2000} : uint16_t{0x3c00});
        source.dense_dtype = kind == "f32" ? DType::f32 : kind == "f16" ? DType::f16 : DType::bf16;
        source.dense = kind == "f32" ? static_cast<const void*>(arrays.floats.data())
                                     : static_cast<const void*>(arrays.halves.data());
        return source;
    }
    source.bits = kind[1] == '4' ? 4 : 8;
    source.group = kind == "q6_k" ? 16 : 32;
    arrays.q = noise(count * static_cast<size_t>(source.bits) / 8);
    if (kind == "q6_k" || kind == "q5_k") {
        for (auto& q : arrays.q)
            q &= kind == "q6_k" ? 63 : 31;
    }
    arrays.halves.assign(count / 16, f32_to_f16(0.01f));
    arrays.multipliers = noise(count / 16);
    for (auto& value : arrays.multipliers)
        value &= 63;
    source.q = arrays.q.data();
    const bool two_level = kind[3] == 'k';
    source.scale = two_level ? static_cast<const void*>(arrays.multipliers.data())
                             : static_cast<const void*>(arrays.halves.data());
    source.scale_dtype = two_level ? DType::u8 : DType::f16;
    source.super_scale = two_level ? arrays.halves.data() : nullptr;
    source.zero_point = kind == "q4_0" ? 8 : kind == "q8_0" ? 128 : kind == "q6_k" ? 32 : 0;
    if (kind == "q4_1" || kind == "q4_k" || kind == "q5_k") {
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

void* aligned(size_t bytes) {
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
}

void measure(const Shape& shape, Level level, int threads, int64_t only, double ghz, Team& team) {
    Arrays arrays;
    const MatrixSource source = source_of(shape, arrays);
    std::vector<std::unique_ptr<PackedLinear>> copies;
    const auto packing = Clock::now();
    size_t total = 0;
    do {
        copies.push_back(std::make_unique<PackedLinear>(std::span(&source, 1), nullptr, level));
        copies.back()->pack_panels(0, copies.back()->num_panels());
        total += copies.back()->size_bytes();
    } while (total < (96u << 20));
    const double pack_s = seconds_since(packing);
    const double bits = 8.0 * static_cast<double>(copies[0]->size_bytes()) /
                        static_cast<double>(shape.rows * shape.depth);
    std::printf("%-13s %-5s N=%ld K=%ld: %.2f bits a weight, packs %.2f GB/s a thread\n",
                shape.name, shape.kind, shape.rows, shape.depth, bits,
                static_cast<double>(total) / pack_s / 1e9);
    const Kernel* quantize = kernels(level).find("quantize_rows");
    const Kernel* linear =
        kernels(level).find(copies[0]->has_affine() ? "linear_affine" : "linear_dense");
    const std::vector<int64_t> all{1, 2, 4, 8, 16, 32, 128, 512};
    for (const int64_t rows : only != 0 ? std::vector<int64_t>{only} : all) {
        std::vector<float> x(static_cast<size_t>(rows * shape.depth));
        for (size_t i = 0; i < x.size(); ++i)
            x[i] = 0.01f * static_cast<float>((i * 7919) % 401) - 2;
        const int64_t row_bytes = quantized_row_bytes(shape.depth / 32 * 32);
        void* quantized = aligned(static_cast<size_t>(rows * row_bytes));
        std::vector<float> out(static_cast<size_t>(rows * shape.rows));
        Arguments arguments;
        arguments.tensor[0] = view(x.data(), DType::f32, rows, shape.depth);
        arguments.tensor[1] = view(quantized, DType::u8, rows, row_bytes);
        if (copies[0]->has_affine()) {
            team.run(*quantize, arguments);
            arguments.tensor[0] = arguments.tensor[1];
        }
        arguments.tensor[1] = view(out.data(), DType::f32, rows, shape.rows);
        arguments.integer[0] = threads;
        size_t next = 0;
        double best = 1e9;
        const auto start = Clock::now();
        while (seconds_since(start) < 0.3) {
            const double begin = now_s(threads);
            const size_t calls = rows >= 128 ? 1 : std::min<size_t>(copies.size(), 32);
            for (size_t i = 0; i < calls; ++i) {
                arguments.object = copies[next]->panels();
                next = (next + 1) % copies.size();
                team.run(*linear, arguments);
            }
            best = std::min(best, (now_s(threads) - begin) / static_cast<double>(calls));
        }
        std::free(quantized);
        std::printf("  M=%-4ld %8.1f us  %6.1f GB/s  %6.1f MAC/cycle/thread  (%ld tasks)\n", rows,
                    best * 1e6, static_cast<double>(copies[0]->size_bytes()) / best / 1e9,
                    static_cast<double>(rows * shape.rows * shape.depth) / best / 1e9 / threads /
                        ghz,
                    linear->tasks(arguments, 0));
        std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::string wanted = argc > 1 ? argv[1] : "avx2";
    const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
    const std::string filter = argc > 3 ? argv[3] : "";
    const int64_t only = argc > 4 ? std::atol(argv[4]) : 0;
    Team team(threads);
    const double ghz = clock_ghz();
    std::printf("%s, %d threads, %.2f GHz\n", wanted.c_str(), threads, ghz);
    for (const Level level : kLevels) {
        if (level_name(level) != wanted)
            continue;
        for (const Shape& shape : kShapes) {
            const std::string name = std::string(shape.name) + " " + shape.kind;
            if (name.find(filter) != std::string::npos)
                measure(shape, level, threads, only, ghz, team);
        }
    }
    return 0;
}
