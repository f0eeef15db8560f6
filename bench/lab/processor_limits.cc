// Measures the limits of matrix products: memory reads, and multiply-adds in registers.
//
//     processor_limits THREADS ISA...
//
// Prints JSON: {"read_bytes_s": ..., "multiply_adds_s": {ISA: {KIND: ...}}}, each for all threads
// together, the best of several rounds. KIND is the operands: "4", "6" and "8" are weights of
// that many bits times int8, exact in integers; "float" is bf16 weights times float32 or bf16. The
// processor must have the ISAs. An ISA without loops here has no kinds.
//
// Needs no other file: c++ -O2 -pthread processor_limits.cc
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.004;
constexpr size_t kReadBytes = size_t{512} << 20;

double processor_s() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Runs body(thread), which does `work`, on `threads` threads that begin together. Returns the work
// of all threads per second, counted in the processor time of each, so that other processes matter
// little.
double rate_together(int threads, double work, const std::function<void(int)>& body) {
    std::atomic<int> waiting{threads};
    std::atomic<bool> begins{false};
    std::vector<double> taken(static_cast<size_t>(threads));
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i) {
        running.emplace_back([&, i] {
            --waiting;
            while (!begins.load(std::memory_order_acquire))
                std::this_thread::yield();
            const double begin = processor_s();
            body(i);
            taken[static_cast<size_t>(i)] = processor_s() - begin;
        });
    }
    while (waiting.load() > 0)
        std::this_thread::yield();
    begins.store(true, std::memory_order_release);
    for (auto& thread : running)
        thread.join();
    double rate = 0;
    for (const double seconds : taken)
        rate += work / seconds;
    return rate;
}

// Returns the bytes that all threads together read per second. Each reads memory of its own.
double read_bytes_s(int threads) {
    const auto count = static_cast<size_t>(threads);
    const size_t words = kReadBytes / sizeof(uint64_t) / count;
    std::vector<std::vector<uint64_t>> memory(count, std::vector<uint64_t>(words, 1));
    std::atomic<uint64_t> total{0};
    double best = 0;
    for (int round = 0; round < kRounds; ++round) {
        const double bytes = static_cast<double>(words * sizeof(uint64_t));
        best = std::max(best, rate_together(threads, bytes, [&](int i) {
                            const uint64_t* from = memory[static_cast<size_t>(i)].data();
                            uint64_t sum[8] = {};
                            for (size_t at = 0; at + 8 <= words; at += 8) {
                                for (size_t j = 0; j < 8; ++j)
                                    sum[j] += from[at + j];
                            }
                            for (const uint64_t one : sum)
                                total += one;
                        }));
    }
    if (total == 0) // so that the sums are needed
        std::abort();
    return best;
}

// A loop of multiply-adds in registers.
struct Loop {
    std::string_view isa;
    std::string_view kind;
    double multiply_adds; // of one repetition
    void (*run)(int64_t repetitions);
};

#if defined(__x86_64__)

// Registers 0 to 11 are independent sums, enough to hide the latency of their instructions. 12 and
// 13 hold products, 14 and 15 the factors. All are zero.
#define TWELVE(F)                                                                                  \
    F("0") F("1") F("2") F("3") F("4") F("5") F("6") F("7") F("8") F("9") F("10") F("11")
#define ZERO(i) "vpxor %%xmm" i ", %%xmm" i ", %%xmm" i "\n\t"
#define REPEAT(body)                                                                               \
    [](int64_t n) {                                                                                \
        asm volatile(TWELVE(ZERO) ZERO("14") ZERO("15") ".p2align 5\n1:\n\t" body "dec %0\n\t"     \
                                                        "jnz 1b\n\t"                               \
                                                        "vzeroupper"                               \
                     : "+r"(n)                                                                     \
                     :                                                                             \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc");        \
    }

#define BYTES_INT16(i)                                                                             \
    "vpmaddubsw %%ymm15, %%ymm14, %%ymm12\n\t"                                                     \
    "vpaddw %%ymm12, %%ymm" i ", %%ymm" i "\n\t"
#define TWO_BYTES_INT32(i)                                                                         \
    "vpmaddubsw %%ymm15, %%ymm14, %%ymm12\n\t"                                                     \
    "vpmaddubsw %%ymm15, %%ymm14, %%ymm13\n\t"                                                     \
    "vpaddw %%ymm12, %%ymm13, %%ymm12\n\t"                                                         \
    "vpmaddwd %%ymm15, %%ymm12, %%ymm12\n\t"                                                       \
    "vpaddd %%ymm12, %%ymm" i ", %%ymm" i "\n\t"
#define WORDS_INT32(i)                                                                             \
    "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n\t"                                                       \
    "vpaddd %%ymm12, %%ymm" i ", %%ymm" i "\n\t"
#define DOT_YMM(i) "%{vex%} vpdpbusd %%ymm15, %%ymm14, %%ymm" i "\n\t"
#define DOT_ZMM(i) "vpdpbusd %%zmm15, %%zmm14, %%zmm" i "\n\t"
#define PAIRS_ZMM(i) "vdpbf16ps %%zmm15, %%zmm14, %%zmm" i "\n\t"
#define FMA_YMM(i) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" i "\n\t"
#define FMA_ZMM(i) "vfmadd231ps %%zmm15, %%zmm14, %%zmm" i "\n\t"

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 to 3 are sums, 4 and 5 the first factors, 6 and 7 the second ones.
#define REPEAT_TILES(product)                                                                      \
    [](int64_t n) {                                                                                \
        const TileConfig config;                                                                   \
        asm volatile("ldtilecfg %1\n1:\n\t" product " %%tmm6, %%tmm4, %%tmm0\n\t" product          \
                     " %%tmm7, %%tmm4, %%tmm1\n\t" product " %%tmm6, %%tmm5, %%tmm2\n\t" product   \
                     " %%tmm7, %%tmm5, %%tmm3\n\t"                                                 \
                     "dec %0\n\t"                                                                  \
                     "jnz 1b\n\t"                                                                  \
                     "tilerelease"                                                                 \
                     : "+r"(n)                                                                     \
                     : "m"(config)                                                                 \
                     : "cc");                                                                      \
    }

const Loop kLoops[] = {
    {"avx2", "4", 12 * 32, REPEAT(TWELVE(BYTES_INT16))},
    {"avx2", "6", 12 * 64, REPEAT(TWELVE(TWO_BYTES_INT32))},
    {"avx2", "8", 12 * 16, REPEAT(TWELVE(WORDS_INT32))},
    {"avx2", "float", 12 * 8, REPEAT(TWELVE(FMA_YMM))},
    {"avx_vnni", "integer", 12 * 32, REPEAT(TWELVE(DOT_YMM))},
    {"avx_vnni", "float", 12 * 8, REPEAT(TWELVE(FMA_YMM))},
    {"avx512", "integer", 12 * 64, REPEAT(TWELVE(DOT_ZMM))},
    {"avx512", "float", 12 * 16, REPEAT(TWELVE(FMA_ZMM))},
    {"avx512_bf16", "integer", 12 * 64, REPEAT(TWELVE(DOT_ZMM))},
    {"avx512_bf16", "float", 12 * 32, REPEAT(TWELVE(PAIRS_ZMM))},
    {"amx", "integer", 4 * 16 * 16 * 64, REPEAT_TILES("tdpbusd")},
    {"amx", "float", 4 * 16 * 16 * 32, REPEAT_TILES("tdpbf16ps")},
};

// Requests permission to use tiles, before threads start.
void request_tiles() {
    constexpr long kRequestPermission = 0x1023; // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;              // XFEATURE_XTILEDATA
    syscall(SYS_arch_prctl, kRequestPermission, kTileData);
}

#else

const std::vector<Loop> kLoops;

void request_tiles() {}

#endif

double multiply_adds_s(const Loop& loop, int threads) {
    int64_t repetitions = 1000;
    double best = 0;
    for (int round = 0; round < kRounds;) {
        const double work = static_cast<double>(repetitions) * loop.multiply_adds;
        const double rate = rate_together(threads, work, [&](int) { loop.run(repetitions); });
        if (work * threads / rate < kRoundSeconds) {
            repetitions *= 2;
            continue;
        }
        best = std::max(best, rate);
        ++round;
    }
    return best;
}

void print_rates(std::string_view isa, int threads) {
    bool first = true;
    for (const Loop& loop : kLoops) {
        if (loop.isa != isa)
            continue;
        const double rate = multiply_adds_s(loop, threads);
        const bool integer = loop.kind == "integer";
        for (const std::string_view kind :
             integer ? std::vector<std::string_view>{"4", "6", "8"} : std::vector{loop.kind}) {
            std::printf("%s\"%.*s\": %.0f", first ? "" : ", ", static_cast<int>(kind.size()),
                        kind.data(), rate);
            first = false;
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 2 || std::atoi(argv[1]) < 1) {
        std::fprintf(stderr, "usage: processor_limits THREADS ISA...\n");
        return 2;
    }
    const int threads = std::atoi(argv[1]);
    request_tiles();
    std::printf("{\"read_bytes_s\": %.0f, \"multiply_adds_s\": {", read_bytes_s(threads));
    for (int i = 2; i < argc; ++i) {
        std::printf("%s\"%s\": {", i == 2 ? "" : ", ", argv[i]);
        print_rates(argv[i], threads);
        std::printf("}");
    }
    std::printf("}}\n");
    return 0;
}
