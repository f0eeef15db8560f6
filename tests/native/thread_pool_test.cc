// Tests that the pool runs every task exactly once, on any number of threads, and loses no wake-up.
#include "plan/thread_pool.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

using penstock::Arguments;
using penstock::Kernel;
using penstock::StallGuard;
using penstock::ThreadPool;
using penstock::Workspace;

namespace {

constexpr int phases_of_counter = 3;

// Phase p adds 1 to the counters that phase p - 1 wrote at p; a broken barrier leaves one behind.
const Kernel counter{"counter", [](const Arguments&) { return phases_of_counter; },
                     [](const Arguments& call, int) { return call.tensor[0].shape[0]; },
                     [](const Arguments& call, int phase, int64_t task, Workspace&) {
                         const int64_t n = call.tensor[0].shape[0];
                         auto* from = call.tensor[0].row<int32_t>(phase);
                         auto* to = call.tensor[0].row<int32_t>(phase + 1);
                         to[task] +=
                             // an element that another task wrote in the previous phase
                             from[n - 1 - task] + 1;
                     },
                     [](const Arguments&) { return size_t{0}; }};

void every_task_runs_once_in_every_phase(int threads, int64_t tasks, int rounds) {
    ThreadPool pool(threads);
    for (int round = 0; round < rounds; ++round) {
        std::vector<int32_t> cells(static_cast<size_t>(tasks) * (phases_of_counter + 1));
        Arguments call;
        call.tensor[0].data = cells.data();
        call.tensor[0].shape[0] = tasks;
        call.tensor[0].stride[0] = tasks;
        pool.acquire(0).run(counter, call);
        for (int phase = 0; phase <= phases_of_counter; ++phase) {
            for (int64_t task = 0; task < tasks; ++task) {
                CHECK(cells[static_cast<size_t>(phase * tasks + task)] == phase);
            }
        }
    }
}

void exception_reaches_the_caller_and_the_pool_survives(int threads) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
        bool caught = false;
        try {
            pool.parallel_for(64, [](int64_t task) {
                if (task == 13)
                    throw std::runtime_error("thirteen");
            });
        } catch (const std::runtime_error&) {
            caught = true;
        }
        CHECK(caught);
        std::atomic<int64_t> sum{0};
        pool.parallel_for(100, [&](int64_t task) { sum += task; });
        CHECK(sum == 4950);
    }
}

void callers_take_turns() {
    ThreadPool pool(2);
    std::atomic<int64_t> sum{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
        callers.emplace_back([&] {
            for (int round = 0; round < 200; ++round) {
                pool.parallel_for(8, [&](int64_t task) { sum += task; });
            }
        });
    }
    for (auto& caller : callers)
        caller.join();
    CHECK(sum == 3 * 200 * 28);
}

void each_thread_has_its_own_workspace() {
    ThreadPool pool(4);
    const Kernel scribble{"scribble", [](const Arguments&) { return 1; },
                          [](const Arguments&, int) { return int64_t{500}; },
                          [](const Arguments&, int, int64_t task, Workspace& workspace) {
                              CHECK(workspace.bytes >= 4096 &&
                                    reinterpret_cast<uintptr_t>(workspace.data) % 64 == 0);
                              auto* words = static_cast<int64_t*>(workspace.data);
                              for (int i = 0; i < 512; ++i)
                                  words[i] = task;
                              for (int i = 0; i < 512; ++i)
                                  CHECK(words[i] == task);
                          },
                          [](const Arguments&) { return size_t{4096}; }};
    pool.acquire(4096).run(scribble, {});
}

// Two threads keep in step: each is in its n-th task before the other ends its own, so that no task
// can be stolen.
void threads_get_equal_shares(int64_t tasks) {
    ThreadPool pool(2);
    std::atomic<int64_t> started[2] = {0, 0};
    const std::thread::id caller = std::this_thread::get_id();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    pool.parallel_for(tasks, [&](int64_t) {
        const size_t self = std::this_thread::get_id() == caller ? 0 : 1;
        const int64_t own = ++started[self];
        while (started[1 - self].load() < own && std::chrono::steady_clock::now() < limit)
            std::this_thread::yield();
    });
    CHECK(started[0].load() == tasks / 2);
    CHECK(started[1].load() == tasks / 2);
}

void sleeping_helpers_wake_again() {
    ThreadPool pool(4);
    std::atomic<int64_t> sum{0};
    for (int round = 0; round < 20; ++round) {
        // Longer than helpers spin. Whether they sleep by now only changes which thread does the
        // work.
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        pool.parallel_for(64, [&](int64_t) { ++sum; });
    }
    CHECK(sum == 20 * 64);
}

void frequent_stalls_make_the_caller_work_alone() {
    StallGuard guard;
    int64_t now = 1'000'000'000;
    const auto clock = [&] { return now; };
    CHECK(!guard.alone(clock));
    guard.waited(now, 100'000, 1'000); // an ordinary wait
    CHECK(!guard.alone(clock) && guard.stalls() == 0);
    guard.waited(now, 3'000'000, 1'000'000); // long, but so are the tasks
    CHECK(!guard.alone(clock) && guard.stalls() == 0);

    constexpr int64_t wait = 4'000'000;
    guard.waited(now, wait, 1'000); // the first one in a second: tolerated
    CHECK(!guard.alone(clock) && guard.stalls() == 1);
    int64_t pause = StallGuard::first_pause_ns;
    for (int i = 0; i < 8; ++i) {
        now += StallGuard::tolerated_gap_in_waits * wait + wait -
               1; // nearly enough time between stalls
        guard.waited(now, wait, 1'000);
        now += pause - 1;
        CHECK(guard.alone(clock));
        now += 1;
        CHECK(!guard.alone(clock));
        pause = std::min(2 * pause, StallGuard::longest_pause_ns);
    }
    now += StallGuard::tolerated_gap_in_waits * wait + wait;
    guard.waited(now, wait, 1'000);
    CHECK(!guard.alone(clock));
    now += wait;
    guard.waited(now, wait, 1'000);
    now += StallGuard::first_pause_ns - 1;
    CHECK(guard.alone(clock));
}

} // namespace

int main() {
    for (const int threads : {1, 2, 4}) {
        for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
            every_task_runs_once_in_every_phase(threads, tasks, 100);
        }
        exception_reaches_the_caller_and_the_pool_survives(threads);
    }
    callers_take_turns();
    each_thread_has_its_own_workspace();
    for (const int64_t tasks : {2, 16, 18, 30, 62, 118})
        threads_get_equal_shares(tasks);
    sleeping_helpers_wake_again();
    frequent_stalls_make_the_caller_work_alone();
}
