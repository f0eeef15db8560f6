// When to stop asking the helpers: the policy that keeps a pool fast on a core that others use too.
// Pure arithmetic over given times, so that a test needs no clock. Standard library only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// A helper that was descheduled in the middle of a task keeps everybody waiting for a whole time
// slice (3-4 ms), hundreds of times the length of a phase. After such a stall the caller works
// alone for a while; a further stall soon after doubles that while, quiet time resets it.
class StallGuard {
  public:
    static constexpr int64_t first_pause_ns = 4'000'000;
    static constexpr int64_t longest_pause_ns = 50'000'000;
    static constexpr int64_t tolerated_wait_ns = 300'000;

    // True while the caller should work alone. `now_ns` is only asked for during a pause.
    template <class Now>
    bool alone(Now&& now_ns) {
        if (alone_until_ns_ == 0) {
            return false;
        }
        const int64_t now = now_ns();
        if (now < alone_until_ns_) {
            return true;
        }
        alone_until_ns_ = 0;
        together_since_ns_ = now;
        return false;
    }

    // A barrier took `waited_ns` longer than the caller's own work, whose claims of tasks took
    // `group_ns` each: a helper that runs needs about as long for its last one.
    void waited(int64_t now_ns, int64_t waited_ns, int64_t group_ns) {
        if (waited_ns < tolerated_wait_ns + 8 * group_ns) {
            return;
        }
        const bool was_quiet = now_ns - together_since_ns_ > 4 * pause_ns_ + 40'000'000;
        pause_ns_ = pause_ns_ == 0 || was_quiet ? first_pause_ns
                                                : std::min(2 * pause_ns_, longest_pause_ns);
        alone_until_ns_ = now_ns + pause_ns_;
        ++stalls_;
    }

    int64_t stalls() const { return stalls_; }

  private:
    int64_t pause_ns_ = 0;
    int64_t alone_until_ns_ = 0;
    int64_t together_since_ns_ = 0;
    int64_t stalls_ = 0;
};

} // namespace penstock
