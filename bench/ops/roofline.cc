// Prints the limits of this machine as a JSON line: read bandwidth by working set, and peak
// arithmetic rates.
//
//   roofline <threads> <seconds of each measurement>
//
// Compile with -march=native on the machine to be measured. `operations` count a multiply-add as
// two.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
    return std::chrono::duration<double>(Clock::now() - began).count();
}

// Calls `work(thread)`, which returns the units it did, repeatedly on every thread for `seconds`.
// Returns the best units per second over three rounds.
double rate(int threads, double seconds, const std::function<double(int)>& work) {
    double best = 0;
    for (int round = 0; round < 3; ++round) {
        std::vector<double> done(static_cast<size_t>(threads), 0.0);
        std::atomic<int> ready{0};
        std::vector<std::thread> pool;
        for (int thread = 0; thread < threads; ++thread) {
            pool.emplace_back([&, thread] {
                double units = work(thread); // warm-up
                ++ready;
                while (ready < threads) {
                }
                const auto began = Clock::now();
                units = 0;
                while (seconds_since(began) < seconds)
                    units += work(thread);
                done[static_cast<size_t>(thread)] = units / seconds_since(began);
            });
        }
        double total = 0;
        for (int thread = 0; thread < threads; ++thread) {
            pool[static_cast<size_t>(thread)].join();
            total += done[static_cast<size_t>(thread)];
        }
        best = total > best ? total : best;
    }
    return best;
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

#if defined(__AVX512F__)
using Vector = __m512i;
#elif defined(__AVX2__)
using Vector = __m256i;
#else
using Vector = __m128i;
#endif

// Bytes per second that all threads together read from their shares of `bytes`.
double read_rate(int threads, double seconds, size_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t share = bytes / static_cast<size_t>(threads) / kPage * kPage;
    std::vector<Memory> memory;
    for (int thread = 0; thread < threads; ++thread) {
        memory.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(kPage, share)));
        std::memset(memory.back().get(), thread + 1, share);
    }
    return rate(threads, seconds, [&](int thread) {
        const auto* data =
            reinterpret_cast<const Vector*>(memory[static_cast<size_t>(thread)].get());
        const size_t passes = share < (1u << 20) ? (1u << 20) / share : 1;
        for (size_t pass = 0; pass < passes; ++pass) {
            for (size_t at = 0; at < share / sizeof(Vector); at += 8) {
                // Makes the compiler load each vector into a register, and do no more.
                for (size_t i = 0; i < 8; ++i)
                    asm volatile("" ::"x"(data[at + i]));
            }
        }
        return static_cast<double>(passes * share);
    });
}

constexpr int kRounds = 100000;
constexpr int kChains = 12; // more than latency times ports

double float_rate(int threads, double seconds) {
    return rate(threads, seconds, [](int) {
#if defined(__AVX512F__)
        constexpr int lanes = 16;
        __m512 sum[kChains];
        for (auto& chain : sum)
            chain = _mm512_set1_ps(1.0f);
        const __m512 factor = _mm512_set1_ps(0.999f);
        for (int round = 0; round < kRounds; ++round) {
            for (auto& chain : sum)
                chain = _mm512_fmadd_ps(chain, factor, factor);
            asm volatile("" ::"v"(factor));
        }
        for (auto& chain : sum)
            asm volatile("" ::"v"(chain));
#elif defined(__FMA__)
        constexpr int lanes = 8;
        __m256 sum[kChains];
        for (auto& chain : sum) chain = _mm256_set1_ps(1.0f);
        const __m256 factor = _mm256_set1_ps(0.999f);
        for (int round = 0; round < kRounds; ++round) {
            for (auto& chain : sum) chain = _mm256_fmadd_ps(chain, factor, factor);
        }
        for (auto& chain : sum) asm volatile("" ::"x"(chain));
#else
        constexpr int lanes = 4;
        __m128 sum[kChains];
        for (auto& chain : sum) chain = _mm_set1_ps(1.0f);
        const __m128 factor = _mm_set1_ps(0.999f);
        for (int round = 0; round < kRounds; ++round) {
            for (auto& chain : sum) chain = _mm_add_ps(_mm_mul_ps(chain, factor), factor);
        }
        for (auto& chain : sum) asm volatile("" ::"x"(chain));
#endif
        return 2.0 * lanes * kChains * kRounds;
    });
}

#if defined(__AMX_INT8__)
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Four accumulator tiles, so that their latencies overlap.
double tile_rate(int threads, double seconds) {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
        return 0;
    return rate(threads, seconds, [](int) {
        const TileShapes shapes;
        asm volatile("ldtilecfg %0" ::"m"(shapes));
        asm volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3\n"
                     "tilezero %tmm6\n tilezero %tmm7");
        for (int round = 0; round < kRounds; ++round) {
            asm volatile("tdpbssd %tmm7, %tmm6, %tmm0\n tdpbssd %tmm7, %tmm6, %tmm1\n"
                         "tdpbssd %tmm7, %tmm6, %tmm2\n tdpbssd %tmm7, %tmm6, %tmm3");
        }
        asm volatile("tilerelease");
        return 2.0 * 16 * 16 * 64 * 4 * kRounds;
    });
}
#endif

double integer_rate(int threads, double seconds) {
#if defined(__AMX_INT8__)
    return tile_rate(threads, seconds);
#else
    return rate(threads, seconds, [](int) {
#if defined(__AVX512VNNI__)
        constexpr int lanes = 64;
        __m512i sum[kChains] = {};
        __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(5);
        for (int round = 0; round < kRounds; ++round) {
            for (auto& chain : sum)
                chain = _mm512_dpbusd_epi32(chain, left, right);
            asm volatile("" : "+v"(left));
        }
        for (auto& chain : sum)
            asm volatile("" ::"v"(chain));
#elif defined(__AVX2__)
        constexpr int lanes = 32;
        __m256i sum[kChains] = {};
        __m256i left = _mm256_set1_epi8(3), right = _mm256_set1_epi8(5);
        const __m256i ones = _mm256_set1_epi16(1);
        for (int round = 0; round < kRounds; ++round) {
            for (auto& chain : sum) {
                asm volatile("" : "+x"(left));  // each product is computed anew
                const __m256i pairs = _mm256_maddubs_epi16(left, right);
                chain = _mm256_add_epi32(chain, _mm256_madd_epi16(pairs, ones));
            }
        }
        for (auto& chain : sum) asm volatile("" ::"x"(chain));
#else
        constexpr int lanes = 8;
        __m128i sum[kChains] = {};
        __m128i left = _mm_set1_epi16(3);
        const __m128i right = _mm_set1_epi16(5);
        for (int round = 0; round < kRounds; ++round) {
            for (auto& chain : sum) {
                asm volatile("" : "+x"(left));
                chain = _mm_add_epi32(chain, _mm_madd_epi16(left, right));
            }
        }
        for (auto& chain : sum) asm volatile("" ::"x"(chain));
#endif
        return 2.0 * lanes * kChains * kRounds;
    });
#endif
}

} // namespace

int main(int count, char** arguments) {
    if (count != 3)
        return 2;
    const int threads = std::atoi(arguments[1]);
    const double seconds = std::atof(arguments[2]);
    if (threads < 1 || seconds <= 0)
        return 2;
    std::printf("{\"threads\": %d, \"float_operations\": %.4g, \"integer_operations\": %.4g, ",
                threads, float_rate(threads, seconds), integer_rate(threads, seconds));
    std::printf("\"read_bytes\": {");
    const char* comma = "";
    for (size_t bytes = 64u << 10; bytes <= 512u << 20; bytes *= 2) {
        std::printf("%s\"%zu\": %.4g", comma, bytes, read_rate(threads, seconds, bytes));
        comma = ", ";
    }
    std::printf("}}\n");
}
