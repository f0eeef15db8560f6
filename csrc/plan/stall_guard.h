// Decides when the thread pool stops using its helpers because another process occupies a core.
// Pure arithmetic over given times, so that tests need no clock. Depends on the standard library
// only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// A helper that is descheduled in the middle of a task makes every thread wait until the helper
// runs again: for a burst of another process, or for a whole time slice (3-4 ms), hundreds of times
// the length of a phase. Occasional waits are acceptable, since helpers are useful between stalls.
// If waits take more than a third of the time, the caller is faster alone: it then works alone for
// a pause, which doubles if the stall recurs at once.
class StallGuard {
  public:
    static constexpr int64_t first_pause_ns = 4'000'000;
    static constexpr int64_t longest_pause_ns = 200'000'000;
    static constexpr int64_t tolerated_wait_ns = 300'000;
    // A wait is acceptable if there was no other wait for this many times its length before.
    static constexpr int64_t tolerated_gap_in_waits = 2;

    // Returns whether the caller should work alone now. Reads `now_ns` only during a pause.
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

    // Records that at a barrier the caller waited `waited_ns` after its own work, in which each
    // group took `group_ns` on average: a running helper needs about `group_ns` for its last group.
    void waited(int64_t now_ns, int64_t waited_ns, int64_t group_ns) {
        if (waited_ns < tolerated_wait_ns + 8 * group_ns) {
            return;
        }
        ++stalls_;
        if (now_ns - waited_ns - together_since_ns_ >= tolerated_gap_in_waits * waited_ns) {
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
