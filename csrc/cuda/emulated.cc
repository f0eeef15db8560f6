// Emulates the threads of a block as fibres, which are created with ucontext and switched with
// longjmp.
#include "cuda/emulated.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

namespace penstock::emulated {

Place place;
unsigned char* dynamic_shared = nullptr;
size_t dynamic_shared_bytes = 0;

// Defined in emulated_hopper.cc.
void begin_hopper_block();
void end_hopper_block();

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

struct Barrier {
    unsigned arrived = 0;
    unsigned generation = 0;
};

struct Fibre {
    ucontext_t context; // entry point; later switches are jumps, which cost no system call
    jmp_buf resume;
    std::vector<unsigned char> stack;
    Place place;
    const Barrier* awaited = nullptr;
    unsigned generation = 0;
    const std::function<bool()>* condition = nullptr;
    bool started = false;
    bool done = false;
};

struct AsyncCopy {
    unsigned char* to;
    const unsigned char* from; // null: zeros
    size_t bytes;
    int group;
};

struct AsyncCopies {
    std::vector<AsyncCopy> going;
    int committed = 0;
};

// State of the running block; only one block runs at a time.
std::vector<AsyncCopies> async_copies;
std::vector<Fibre> fibres;
std::vector<Barrier> warp_barriers;
std::vector<unsigned char> warp_slots;
Barrier barrier_of_block;
Barrier named_barriers[16];
jmp_buf scheduler;
size_t running;
const std::function<void()>* body_of_block;

void enter() {
    (*body_of_block)();
    fibres[running].done = true;
    _longjmp(scheduler, 1);
}

// Waits until `expected` threads have arrived. Threads that have ended do not count, because no
// kernel ends a thread while other threads wait.
void wait(Barrier& barrier, unsigned expected) {
    Fibre& fibre = fibres[running];
    fibre.awaited = &barrier;
    fibre.generation = barrier.generation;
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    if (_setjmp(fibre.resume) == 0) {
        _longjmp(scheduler, 1);
    }
}

bool can_run(const Fibre& fibre) {
    if (fibre.condition != nullptr)
        return (*fibre.condition)();
    return !fibre.done &&
           (fibre.awaited == nullptr || fibre.awaited->generation != fibre.generation);
}

// Runs a fibre until its next barrier or its end.
void switch_to(Fibre& fibre) {
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (fibre.started) {
        _longjmp(fibre.resume, 1);
    }
    fibre.started = true;
    setcontext(&fibre.context);
}

void begin_block(unsigned threads, const Place& at) {
    begin_hopper_block();
    barrier_of_block = {};
    for (Barrier& barrier : named_barriers)
        barrier = {};
    async_copies.assign(threads, {});
    warp_barriers.assign((threads + kWarp - 1) / kWarp, {});
    for (unsigned index = 0; index < threads; ++index) {
        Fibre& fibre = fibres[index];
        fibre.started = fibre.done = false;
        fibre.awaited = nullptr;
        fibre.condition = nullptr;
        fibre.place = at;
        fibre.place.thread = dim3(index % at.block_dim.x, index / at.block_dim.x, 0);
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = fibre.stack.size();
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, enter, 0);
    }
}

// Resumes each thread from `begin` to `end` once. Returns whether any thread could run.
bool run_threads(unsigned begin, unsigned end, unsigned& live) {
    bool progress = false;
    for (running = begin; running < end; ++running) {
        Fibre& fibre = fibres[running];
        if (!can_run(fibre))
            continue;
        progress = true;
        place = fibre.place;
        switch_to(fibre);
        live -= fibre.done;
    }
    return progress;
}

// Runs the threads of a block. In even blocks the warps alternate at every barrier; in odd blocks
// each warp runs as far as it can.
void run_block(unsigned threads, const Place& at) {
    begin_block(threads, at);
    unsigned live = threads;
    while (live != 0) {
        bool progress = false;
        for (unsigned begin = 0; begin < threads; begin += kWarp) {
            const unsigned end = begin + kWarp < threads ? begin + kWarp : threads;
            while (run_threads(begin, end, live)) {
                progress = true;
                if (at.block.x % 2 == 0)
                    break;
            }
        }
        if (!progress) {
            std::fputs("emulated: threads of a block wait for each other\n", stderr);
            std::abort();
        }
    }
    for (const AsyncCopies& own : async_copies) {
        if (!own.going.empty()) {
            std::fputs("emulated: a block ended before its copies\n", stderr);
            std::abort();
        }
    }
    end_hopper_block();
}

AsyncCopies& own_copies() {
    return async_copies[place.thread.y * place.block_dim.x + place.thread.x];
}

} // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
    const unsigned threads = block.x * block.y;
    if (fibres.size() < threads)
        fibres.resize(threads);
    for (Fibre& fibre : fibres)
        fibre.stack.resize(kStackBytes);
    warp_slots.resize(static_cast<size_t>(threads + kWarp) * 64);
    std::vector<unsigned char> shared(shared_bytes + 128);
    const size_t misaligned = reinterpret_cast<uintptr_t>(shared.data()) % 128;
    dynamic_shared = shared.data() + (128 - misaligned) % 128;
    dynamic_shared_bytes = shared_bytes;
    body_of_block = &body;
    for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
            std::memset(shared.data(), 0xff, shared.size()); // NaN
            run_block(threads, Place{dim3(), dim3(x, y), block, grid});
        }
    }
}

void block_barrier() {
    wait(barrier_of_block, place.block_dim.x * place.block_dim.y);
}

void warp_barrier() {
    wait(warp_barriers[place.thread.x / kWarp], kWarp);
}

void wait_at_named(int id, unsigned threads) {
    wait(named_barriers[id], threads);
}

void wait_until(const std::function<bool()>& ready) {
    if (ready())
        return;
    Fibre& fibre = fibres[running];
    fibre.condition = &ready;
    if (_setjmp(fibre.resume) == 0) {
        _longjmp(scheduler, 1);
    }
    fibre.condition = nullptr;
}

void copy_async(void* to, const void* from, size_t bytes, bool exists) {
    AsyncCopies& own = own_copies();
    auto* const target = static_cast<unsigned char*>(to);
    if (reinterpret_cast<uintptr_t>(to) % bytes != 0 ||
        reinterpret_cast<uintptr_t>(from) % bytes != 0) {
        std::fputs("emulated: a copy that is not aligned\n", stderr);
        std::abort();
    }
    std::memset(target, 0xff, bytes); // NaN
    const auto* const source = exists ? static_cast<const unsigned char*>(from) : nullptr;
    own.going.push_back({target, source, bytes, own.committed});
}

void commit_copies() {
    ++own_copies().committed;
}

void wait_for_copies(int later) {
    AsyncCopies& own = own_copies();
    size_t left = 0;
    for (const AsyncCopy& copy : own.going) {
        if (copy.group >= own.committed - later)
            own.going[left++] = copy;
        else if (copy.from == nullptr)
            std::memset(copy.to, 0, copy.bytes);
        else
            std::memcpy(copy.to, copy.from, copy.bytes);
    }
    own.going.resize(left);
}

unsigned char* warp_slot(int lane) {
    return warp_slots.data() + (static_cast<size_t>(place.thread.x / kWarp) * kWarp + lane) * 64;
}

} // namespace penstock::emulated
