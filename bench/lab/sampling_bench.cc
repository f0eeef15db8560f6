// Measures sampling of one row: microseconds of CPU time per row, one thread.
//
//   sampling_bench [ISA = avx2]
//
// Logits: "peaked", normal with a few tokens raised by up to 15, like a model's; "flat", normal
// with standard deviation 3; "level", uniform in [0, 1), so that all tokens are about equally
// likely; "steps", rounded to quarters, so that thousands are equal; "equal", all the same;
// "cluster", one token far above values that are close to each other. The floor of a row is one
// read of it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>
#include <string_view>
#include <vector>

#include "cpu/isa/isa.h"
#include "isa_argument.h"

using namespace penstock;

namespace {

struct Case {
    const char* name;
    float temperature, top_p, min_p;
    int32_t top_k;
};

constexpr Case kCases[] = {
    {"greedy", 0.0f, 1.0f, 0.0f, 0},
    {"temperature", 0.8f, 1.0f, 0.0f, 0},
    {"top-k 50", 0.8f, 1.0f, 0.0f, 50},
    {"top-k 500", 0.8f, 1.0f, 0.0f, 500},
    {"top-k 5000", 0.8f, 1.0f, 0.0f, 5000},
    {"top-k 20000", 0.8f, 1.0f, 0.0f, 20000},
    {"top-p 0.5", 0.8f, 0.5f, 0.0f, 0},
    {"top-p 0.95", 0.8f, 0.95f, 0.0f, 0},
    {"top-p 0.95, hot", 2.0f, 0.95f, 0.0f, 0},
    {"min-p 0.05", 0.8f, 1.0f, 0.05f, 0},
    {"top-k 50, top-p, min-p", 0.8f, 0.95f, 0.05f, 50},
    {"top-k 20000, top-p, min-p", 2.0f, 0.9f, 0.01f, 20000},
};

TensorView view(void* data, DType dtype, int64_t rows, int64_t width = 0) {
    TensorView result;
    result.data = data;
    result.dtype = dtype;
    result.rank = width ? 2 : 1;
    result.shape = {rows, width ? width : 1, 1, 1};
    result.stride = {width ? width : 1, 1, 1, 1};
    return result;
}

double processor_us() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

constexpr const char* kShapes[] = {"peaked", "flat", "level", "steps", "equal", "cluster"};

std::vector<float> random_logits(int64_t vocabulary, std::string_view shape) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    for (float& x : logits) {
        x = shape == "level" ? uniform(random) : normal(random);
        if (shape == "steps")
            x = std::round(x * 4) / 4;
        if (shape == "equal")
            x = 1.5f;
        if (shape == "cluster")
            x = 1e-20f * uniform(random);
    }
    if (shape == "cluster")
        logits[logits.size() / 2] = 3.0f;
    for (int i = 0; i < 20 && shape == "peaked"; ++i) {
        logits[random() % logits.size()] += 0.75f * static_cast<float>(20 - i);
    }
    return logits;
}

double median_us(const Kernel& kernel, const Arguments& call) {
    std::vector<double> memory(kernel.workspace_bytes(call) / sizeof(double) + 8);
    Workspace workspace{memory.data(), memory.size() * sizeof(double)};
    std::vector<double> times;
    for (int i = 0; i < 101; ++i) {
        const double start = processor_us();
        kernel.run(call, 0, 0, workspace);
        times.push_back(processor_us() - start);
    }
    std::nth_element(times.begin(), times.begin() + 50, times.end());
    return times[50];
}

void measure(const cpu::KernelTable& kernels, int64_t vocabulary) {
    std::printf("vocabulary %-16lld", static_cast<long long>(vocabulary));
    for (const char* shape : kShapes)
        std::printf("%10s", shape);
    std::printf("   us\n");
    for (Case item : kCases) {
        std::printf("  %-25s", item.name);
        for (const char* shape : kShapes) {
            std::vector<float> logits = random_logits(vocabulary, shape);
            int32_t token = 0;
            int64_t seed = 7, position = 11;
            Arguments call;
            call.tensor = {view(logits.data(), DType::f32, 1, vocabulary),
                           view(&item.temperature, DType::f32, 1),
                           view(&item.top_k, DType::i32, 1),
                           view(&item.top_p, DType::f32, 1),
                           view(&item.min_p, DType::f32, 1),
                           view(&seed, DType::i64, 1),
                           view(&position, DType::i64, 1),
                           view(&token, DType::i32, 1)};
            std::printf("%10.1f", median_us(*kernels.find("sample"), call));
        }
        std::printf("\n");
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::string_view wanted = argc > 1 ? argv[1] : "avx2";
    const auto isa = lab::isa_argument(wanted);
    if (!isa)
        return 2;
    for (const int64_t vocabulary : {49152, 151936})
        measure(cpu::kernels(*isa), vocabulary);
    return 0;
}
