// Persistent threads that share the tasks of one phase at a time. Depends on the standard library
// only.
//
// The caller is worker 0. It publishes a phase by giving every worker a range of task groups. A
// worker empties its own range (the same rows every time, so that they stay in its cache), then
// steals from the ranges of other workers. A range is one 64-bit ticket (next group, end): the
// thread that advances the ticket owns the group, and only then reads the worker's job. A helper
// that wakes late finds no groups to claim, and the barrier waits only for groups that were claimed
// and are not finished. Helpers spin briefly between phases, then sleep on a futex.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "penstock/kernel.h"
#include "plan/aligned_buffer.h"
#include "plan/stall_guard.h"

namespace penstock {

class ThreadPool {
  public:
    // `threads` >= 1 includes the caller. Throws std::system_error if a thread cannot start.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Returns the number of barriers that waited for a descheduled helper since the pool was made.
    int64_t stalls() const { return stalls_.load(std::memory_order_relaxed); }

    // The exclusive right to run phases. Other threads wait in `acquire`.
    class Lease {
      public:
        // Runs all phases of one kernel call. The kernel's `run` must not throw.
        void run(const Kernel& kernel, const Arguments& arguments);

      private:
        friend class ThreadPool;
        explicit Lease(ThreadPool& pool) : pool_(pool), lock_(pool.mutex_) {}
        ThreadPool& pool_;
        std::unique_lock<std::mutex> lock_;
    };

    // Waits for the exclusive right to run phases. Every worker's workspace has at least
    // `workspace_bytes` while the lease is held.
    Lease acquire(size_t workspace_bytes);

    // Calls body(task) for each task in [0, tasks), in any order, on any worker. Rethrows the first
    // exception that a body throws, after all running bodies have ended; bodies that have not
    // started by then are skipped.
    template <class Body>
    void parallel_for(int64_t tasks, const Body& body) {
        struct Call {
            const Body& body;
            std::atomic<bool> failed{false};
            std::exception_ptr error{};
        } call{body};
        Arguments arguments;
        arguments.object = &call;
        const auto run = [](const Arguments& a, int, int64_t task, Workspace&) {
            auto& shared = *static_cast<Call*>(const_cast<void*>(a.object));
            if (shared.failed.load(std::memory_order_relaxed)) {
                return;
            }
            try {
                shared.body(task);
            } catch (...) {
                if (!shared.failed.exchange(true)) {
                    shared.error = std::current_exception();
                }
            }
        };
        {
            Lease lease = acquire(0);
            run_phase({run, &arguments, 0, tasks, 1});
        }
        if (call.error) {
            std::rethrow_exception(call.error);
        }
    }

  private:
    struct Job {
        void (*run)(const Arguments&, int, int64_t, Workspace&) = nullptr;
        const Arguments* arguments = nullptr;
        int phase = 0;
        int64_t tasks = 0;
        int64_t groups = 1; // number of groups, which have nearly equal numbers of tasks

        // Returns the first task of a group, or the number of tasks for the group after the last.
        int64_t first_task(int64_t group) const { return tasks * group / groups; }
    };

    // 128 bytes, because current CPUs prefetch cache lines in pairs.
    struct alignas(128) Worker {
        std::atomic<uint64_t> ticket{0}; // next group in the high half, end in the low half
        Job job;
        alignas(128) std::atomic<uint32_t> parked{0};
        Workspace workspace;
        AlignedBuffer memory;
    };

    void run_phase(Job job);
    void run_alone(const Job& job);
    void publish(const Job& job);
    uint32_t drain(int self);
    void barrier(uint32_t helpers_done, int64_t started_ns, uint32_t own_groups);
    void help(int self);
    bool idle(Worker& own);
    void stop();

    const int threads_;
    std::vector<Worker> workers_;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    StallGuard guard_;
    std::atomic<int64_t> stalls_{0};
    const int64_t process_id_;
    bool forked_ = false;
    uint32_t helpers_target_ = 0; // groups that helpers must have finished since the pool was made
    alignas(128) std::atomic<uint32_t> helpers_done_{0};
    alignas(128) std::atomic<bool> stopping_{false};
};

} // namespace penstock
