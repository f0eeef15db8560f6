// Measures a row of sampling: microseconds of processor time per row, one thread.
//
//   sampling_bench [level = avx2]
//
// Logits are normal with standard deviation 3 (flat: many tokens share the mass) or 3 with a few
// tokens raised by up to 15 (peaked, as a model's are). The floor of a row is one read of it.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string_view>
#include <vector>

#include "cpu/level.h"

using namespace penstock;

namespace {

struct Case {
    const char* name;
    float temperature, top_p, min_p;
    int32_t top_k;
};

constexpr Case kCases[] = {
    {"greedy", 0.0f, 1.0f, 0.0f, 0},      {"temperature", 0.8f, 1.0f, 0.0f, 0},
    {"top-k 50", 0.8f, 1.0f, 0.0f, 50},   {"top-p 0.95", 0.8f, 0.95f, 0.0f, 0},
    {"min-p 0.05", 0.8f, 1.0f, 0.05f, 0}, {"top-k, top-p, min-p", 0.8f, 0.95f, 0.05f, 50},
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

std::vector<float> draw_logits(int64_t vocabulary, float raised_by) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    for (float& x : logits) x = normal(random);
    for (int i = 0; i < 20; ++i) {
        logits[random() % logits.size()] += raised_by * static_cast<float>(20 - i) / 20;
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

void measure(const cpu::KernelTable& kernels, int64_t vocabulary, float raised_by) {
    std::vector<float> logits = draw_logits(vocabulary, raised_by);
    std::printf("vocabulary %lld, %s\n", static_cast<long long>(vocabulary),
                raised_by > 0 ? "peaked" : "flat");
    int32_t token = 0;
    Arguments greedy;
    greedy.tensor = {view(logits.data(), DType::f32, 1, vocabulary), view(&token, DType::i32, 1)};
    std::printf("  %-22s %8.1f us\n", "argmax", median_us(*kernels.find("argmax"), greedy));
    for (Case item : kCases) {
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
        std::printf("  %-22s %8.1f us\n", item.name, median_us(*kernels.find("sample"), call));
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view wanted = argc > 1 ? argv[1] : "avx2";
    for (const cpu::Level level : cpu::kLevels) {
        if (wanted != cpu::level_name(level)) continue;
        for (const int64_t vocabulary : {49152, 151936}) {
            for (const float raised_by : {0.0f, 15.0f}) {
                measure(cpu::kernels(level), vocabulary, raised_by);
            }
        }
        return 0;
    }
    std::fprintf(stderr, "no such level\n");
    return 2;
}
