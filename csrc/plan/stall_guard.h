// When to stop asking the helpers: the policy that keeps a pool fast on a core that others use too.
// Pure arithmetic over given times, so that a test needs no clock. Standard library only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// A helper that was descheduled in the middle of a task keeps everybody waiting until it runs
// again: a burst of another process, or a whole time slice (3-4 ms), hundreds of times the length
// of a phase. While the helpers are there the caller gets their work besides its own, so a wait now
// and then is a fair price. Where waits take more than a third of the time, working alone is
// faster: the caller does so for a while, for twice as long when that happens again at once.
class StallGuard {
  public:
    static constexpr int64_t first_pause_ns = 4'000'000;
    static constexpr int64_t longest_pause_ns = 200'000'000;
    static constexpr int64_t tolerated_wait_ns = 300'000;
    static constexpr int64_t fair_price = 2; // time together that makes up for a wait, in waits

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
        ++stalls_;
        if (now_ns - waited_ns - together_since_ns_ >= fair_price * waited_ns) {
            together_since_ns_ = now_ns;
            pause_ns_ = 0;
            return;
        }
        pause_ns_ = pause_ns_ == 0 ? first_pause_ns : std::min(2 * pause_ns_, longest_pause_ns);
        alone_until_ns_ = now_ns + pause_ns_;
    }

    int64_t stalls() const { return stalls_; }

  private:
    int64_t pause_ns_ = 0;
    int64_t alone_until_ns_ = 0;
    int64_t together_since_ns_ = 0;
    int64_t stalls_ = 0;
};

} // namespace penstock
