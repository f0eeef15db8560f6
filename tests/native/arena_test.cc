// Tests that buffers that are live in the same step never share a byte, for random lifetimes and
// sizes.
#include "plan/arena.h"

#include <random>

#include "check.h"

using penstock::ArenaLayout;
using penstock::Lifetime;
using penstock::place;

namespace {

void check_layout(const std::vector<Lifetime>& lifetimes, const ArenaLayout& layout) {
    CHECK(layout.offsets.size() == lifetimes.size());
    for (size_t i = 0; i < lifetimes.size(); ++i) {
        CHECK(layout.offsets[i] % 64 == 0);
        CHECK(layout.offsets[i] + lifetimes[i].bytes <= layout.bytes);
        for (size_t j = 0; j < i; ++j) {
            const bool together =
                lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last;
            const bool apart = layout.offsets[i] + lifetimes[i].bytes <= layout.offsets[j] ||
                               layout.offsets[j] + lifetimes[j].bytes <= layout.offsets[i];
            CHECK(!together || apart);
        }
    }
}

void live_buffers_never_overlap() {
    std::mt19937 random(1);
    for (int round = 0; round < 500; ++round) {
        std::vector<Lifetime> lifetimes(random() % 60);
        for (auto& lifetime : lifetimes) {
            lifetime.first = static_cast<int32_t>(random() % 40);
            lifetime.last = lifetime.first + static_cast<int32_t>(random() % 12);
            lifetime.bytes = random() % 5000;
        }
        check_layout(lifetimes, place(lifetimes));
    }
}

void chain_of_equal_buffers_takes_the_memory_of_two() {
    std::vector<Lifetime> chain;
    for (int32_t step = 0; step < 100; ++step)
        chain.push_back({step, step + 1, 640});
    const ArenaLayout layout = place(chain);
    check_layout(chain, layout);
    CHECK(layout.bytes == 2 * 640);
}

} // namespace

int main() {
    live_buffers_never_overlap();
    chain_of_equal_buffers_takes_the_memory_of_two();
}
