// Fibres by ucontext: slow and simple.
#include "cuda/emulated.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace penstock::emulated {

Place place;
unsigned char* dynamic_shared = nullptr;

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kWarp = 32;

struct Barrier {
    unsigned arrived = 0;
    unsigned generation = 0;
};

struct Fibre {
    ucontext_t context;
    std::vector<unsigned char> stack;
    Place place;
    bool done = false;
};

// One block at a time.
std::vector<Fibre> fibres;
std::vector<Barrier> warp_barriers;
std::vector<unsigned char> warp_slots;
Barrier barrier_of_block;
ucontext_t scheduler;
size_t running;
unsigned live, progress;
const std::function<void()>* body_of_block;

void enter() {
    (*body_of_block)();
    fibres[running].done = true;
    ++progress;
    swapcontext(&fibres[running].context, &scheduler);
}

// `expected`: threads that must come. A thread that has ended is not waited for, as on Volta and
// later only for __syncthreads; kernels here never let one end before others wait.
void wait(Barrier& barrier, unsigned expected) {
    const unsigned mine = barrier.generation;
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        ++progress;
        return;
    }
    while (barrier.generation == mine) {
        swapcontext(&fibres[running].context, &scheduler);
    }
}

void run_block(unsigned threads, const Place& at) {
    barrier_of_block = {};
    warp_barriers.assign((threads + kWarp - 1) / kWarp, {});
    live = threads;
    for (unsigned index = 0; index < threads; ++index) {
        Fibre& fibre = fibres[index];
        fibre.done = false;
        fibre.place = at;
        fibre.place.thread = dim3(index % at.block_dim.x, index / at.block_dim.x, 0);
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = fibre.stack.size();
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, enter, 0);
    }
    while (live != 0) {
        const unsigned before = progress;
        for (running = 0; running < threads; ++running) {
            if (fibres[running].done)
                continue;
            place = fibres[running].place;
            swapcontext(&scheduler, &fibres[running].context);
            if (fibres[running].done)
                --live;
        }
        if (progress == before) {
            std::fputs("emulated: threads of a block wait for each other\n", stderr);
            std::abort();
        }
    }
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

unsigned char* warp_slot(int lane) {
    return warp_slots.data() + (static_cast<size_t>(place.thread.x / kWarp) * kWarp + lane) * 64;
}

} // namespace penstock::emulated
