#include "plan/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace penstock {
namespace {

constexpr int64_t spin_ns = 40'000;      // then sleep: an idle pool uses no CPU
constexpr int spins_per_look = 32;       // spins between two reads of the clock
constexpr int64_t groups_per_worker = 8; // few claims, but groups small enough to steal

int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Tells the processor that the thread spins.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    // ISB stalls about as long as PAUSE on x86; YIELD is a no-op on most cores
    asm volatile("isb" ::: "memory");
#endif
}

constexpr uint64_t pack(uint64_t next, uint64_t end) {
    return next << 32 | end;
}

constexpr bool has_group(uint64_t ticket) {
    return (ticket >> 32) < (ticket & 0xffffffffU);
}

} // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(threads), workers_(threads >= 1 ? static_cast<size_t>(threads) : 0),
      process_id_(getpid()) {
    if (threads < 1) {
        throw std::invalid_argument("threads must be at least 1");
    }
    try {
        for (int self = 1; self < threads_; ++self) {
            helpers_.emplace_back(&ThreadPool::help, this, self);
        }
    } catch (...) {
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() {
    if (process_id_ == getpid()) {
        stop();
        return;
    }
    for (auto& helper : helpers_) { // in a child after fork: the threads exist only in the parent
        helper.detach();
    }
}

void ThreadPool::stop() {
    stopping_.store(true);
    for (auto& worker : workers_) {
        worker.parked.store(0);
        worker.parked.notify_one();
    }
    for (auto& helper : helpers_) {
        helper.join();
    }
}

ThreadPool::Lease ThreadPool::acquire(size_t workspace_bytes) {
    Lease lease(*this);
    forked_ = process_id_ != getpid();
    for (auto& worker : workers_) {
        if (worker.memory.bytes() < workspace_bytes) {
            worker.memory = AlignedBuffer();
            worker.workspace = {};
            worker.memory = AlignedBuffer(workspace_bytes);
            worker.workspace = {worker.memory.data(), worker.memory.bytes()};
        }
    }
    return lease;
}

void ThreadPool::Lease::run(const Kernel& kernel, const Arguments& arguments) {
    const int phases = kernel.phases(arguments);
    for (int phase = 0; phase < phases; ++phase) {
        pool_.run_phase({kernel.run, &arguments, phase, kernel.tasks(arguments, phase), 1});
    }
}

void ThreadPool::run_phase(Job job) {
    if (job.tasks <= 1 || threads_ == 1 || forked_ || guard_.alone(now_ns)) {
        run_alone(job);
        return;
    }
    job.groups = std::min(job.tasks, groups_per_worker * threads_);
    const int64_t started_ns = now_ns();
    publish(job);
    const uint32_t own_groups = drain(0);
    helpers_target_ += static_cast<uint32_t>(job.groups) - own_groups;
    barrier(helpers_target_, started_ns, own_groups);
}

void ThreadPool::run_alone(const Job& job) {
    for (int64_t task = 0; task < job.tasks; ++task) {
        job.run(*job.arguments, job.phase, task, workers_[0].workspace);
    }
}

// Gives each worker its range of the job's groups, and wakes parked helpers. The ticket is stored
// before `parked` is read, and a helper sets `parked` before it reads the ticket, all sequentially
// consistent: at least one of the two threads sees the other's store, so no wake-up is lost.
void ThreadPool::publish(const Job& job) {
    const auto threads = static_cast<uint64_t>(threads_),
               groups = static_cast<uint64_t>(job.groups);
    for (uint64_t i = threads; i-- > 0;) {
        Worker& worker = workers_[i];
        worker.job = job;
        worker.ticket.store(pack(groups * i / threads, groups * (i + 1) / threads));
    }
    for (uint64_t i = 1; i < threads; ++i) {
        Worker& worker = workers_[i];
        if (worker.parked.load() != 0) {
            worker.parked.store(0);
            worker.parked.notify_one();
        }
    }
}

// Runs groups from this worker's range, then from the ranges of all other workers, until no group
// is left. Returns the number of groups that this worker ran.
uint32_t ThreadPool::drain(int self) {
    uint32_t finished = 0;
    for (int i = 0; i < threads_; ++i) {
        const int from = self + i < threads_ ? self + i : self + i - threads_;
        Worker& victim = workers_[static_cast<size_t>(from)];
        uint64_t ticket = victim.ticket.load(std::memory_order_relaxed);
        while (has_group(ticket)) {
            if (!victim.ticket.compare_exchange_weak(ticket, ticket + pack(1, 0),
                                                     std::memory_order_acquire,
                                                     std::memory_order_relaxed)) {
                continue;
            }
            // This thread has claimed the group, so `victim.job` stays valid until the group is
            // done.
            const Job& job = victim.job;
            const auto group = static_cast<int64_t>(ticket >> 32);
            const int64_t last = job.first_task(group + 1);
            for (int64_t task = job.first_task(group); task < last; ++task) {
                job.run(*job.arguments, job.phase, task,
                        workers_[static_cast<size_t>(self)].workspace);
            }
            ++finished;
            ticket = victim.ticket.load(std::memory_order_relaxed);
        }
    }
    return finished;
}

void ThreadPool::barrier(uint32_t helpers_done, int64_t started_ns, uint32_t own_groups) {
    for (int i = 0; i < spins_per_look; ++i) {
        if (helpers_done_.load(std::memory_order_acquire) == helpers_done) {
            return;
        }
        relax();
    }
    const int64_t waiting_ns = now_ns();
    uint32_t done;
    while ((done = helpers_done_.load(std::memory_order_acquire)) != helpers_done) {
        if (now_ns() - waiting_ns > spin_ns) {
            helpers_done_.wait(done, std::memory_order_acquire);
        } else {
            for (int i = 0; i < spins_per_look; ++i) {
                relax();
            }
        }
    }
    const int64_t ended_ns = now_ns();
    guard_.waited(ended_ns, ended_ns - waiting_ns,
                  (waiting_ns - started_ns) / std::max<int64_t>(own_groups, 1));
    stalls_.store(guard_.stalls(), std::memory_order_relaxed);
}

void ThreadPool::help(int self) {
    Worker& own = workers_[static_cast<size_t>(self)];
    while (!stopping_.load(std::memory_order_relaxed)) {
        const uint32_t finished = drain(self);
        if (finished != 0) {
            helpers_done_.fetch_add(finished, std::memory_order_release);
            helpers_done_.notify_one();
        }
        if (!idle(own)) {
            own.parked.store(1);
            if (has_group(own.ticket.load()) || stopping_.load()) {
                own.parked.store(0);
            } else {
                own.parked.wait(1);
            }
        }
    }
}

// Spins until this worker's range has a group (returns true) or the spin time is over (returns
// false).
bool ThreadPool::idle(Worker& own) {
    const int64_t since_ns = now_ns();
    do {
        for (int i = 0; i < spins_per_look; ++i) {
            if (has_group(own.ticket.load(std::memory_order_relaxed))) {
                return true;
            }
            relax();
        }
    } while (now_ns() - since_ns < spin_ns && !stopping_.load(std::memory_order_relaxed));
    return false;
}

} // namespace penstock
