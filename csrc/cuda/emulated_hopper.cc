// Emulates mbarriers, TMA copies and warp-group products as the PTX ISA defines them; see
// emulated_hopper.h.
#include "cuda/emulated_hopper.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

namespace penstock::emulated {

namespace {

constexpr uint32_t kSharedBegin = 16; // the block's memory does not start at an aligned address

[[noreturn]] void misuse(const char* what) {
    std::fprintf(stderr, "emulated: %s\n", what);
    std::abort();
}

void check(bool holds, const char* otherwise) {
    if (!holds)
        misuse(otherwise);
}

// The 64 bits of an mbarrier.
struct Counts {
    int32_t bytes; // bytes that are expected and not yet copied
    uint16_t missing;
    uint16_t count : 15;
    uint16_t phase : 1;
};
static_assert(sizeof(Counts) == sizeof(uint64_t));

struct Copy {
    unsigned char* to;
    TensorMap map;
    uint64_t* barrier;
    int at[4];
};

struct Product {
    float* sums;
    int columns;
    bool from_registers, add;
    uint64_t a, b;
    uint32_t held[4];
    int group; // number of the thread's commit
};

// Products of one thread.
struct Products {
    std::deque<Product> going;
    int committed = 0;
};

// State of the running block.
std::vector<Copy> copies;
std::map<unsigned, Products> products;
std::map<unsigned, uint64_t> issued; // a digest of each warp's products

Counts load(const uint64_t* barrier) {
    Counts counts;
    std::memcpy(&counts, barrier, sizeof counts);
    check(counts.count != 0x7fff, "a barrier is used before it is made");
    return counts;
}

void store(uint64_t* barrier, Counts counts) {
    if (counts.missing == 0 && counts.bytes == 0) {
        counts.phase ^= 1;
        counts.missing = counts.count;
    }
    std::memcpy(barrier, &counts, sizeof counts);
}

unsigned char* of_address(uint32_t address) {
    check(address >= kSharedBegin && address - kSharedBegin < dynamic_shared_bytes,
          "an address outside of the block's memory");
    return dynamic_shared + (address - kSharedBegin);
}

uint32_t swizzled(uint32_t address) {
    return address ^ ((address >> 7 & 7) << 4);
}

uint32_t box_bytes(const TensorMap& map) {
    return map.item_bytes * map.box[0] * map.box[1] * map.box[2] * map.box[3];
}

// Calls `each(row, from)` for every row of the box; `from` points to the row in the tensor, or is
// null if the row is outside the tensor.
template <class Each>
void rows_of(const Copy& copy, const Each& each) {
    const TensorMap& map = copy.map;
    uint32_t row = 0;
    for (uint32_t z = 0; z < map.box[3]; ++z) {
        for (uint32_t y = 0; y < map.box[2]; ++y) {
            for (uint32_t x = 0; x < map.box[1]; ++x, ++row) {
                const int64_t at[4] = {copy.at[0], copy.at[1] + x, copy.at[2] + y, copy.at[3] + z};
                bool inside = true;
                const unsigned char* from = map.base + map.item_bytes * at[0];
                for (int i = 0; i < 4; ++i) {
                    inside = inside && at[i] >= 0 && at[i] < static_cast<int64_t>(map.sizes[i]);
                    if (i > 0)
                        from += at[i] * static_cast<int64_t>(map.strides[i - 1]);
                }
                each(row, inside ? from : nullptr);
            }
        }
    }
}

void finish(const Copy& copy) {
    const uint32_t begin = shared_address(copy.to);
    const uint32_t row_bytes = copy.map.item_bytes * copy.map.box[0];
    rows_of(copy, [&](uint32_t row, const unsigned char* from) {
        for (uint32_t byte = 0; byte < row_bytes; byte += 16) {
            const uint32_t place = begin + row_bytes * row + byte;
            unsigned char* const to =
                of_address(copy.map.item_bytes == 2 ? swizzled(place) : place);
            if (from == nullptr)
                std::memset(to, 0, 16);
            else
                std::memcpy(to, from + byte, 16);
        }
    });
    Counts counts = load(copy.barrier);
    counts.bytes -= static_cast<int32_t>(box_bytes(copy.map));
    store(copy.barrier, counts);
}

void finish_copies_to(const uint64_t* barrier) {
    for (size_t i = 0; i < copies.size();) {
        if (copies[i].barrier != barrier) {
            ++i;
            continue;
        }
        const Copy copy = copies[i];
        copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(i));
        finish(copy);
    }
}

float element(uint64_t descriptor, int line, int k, bool k_innermost) {
    const auto decoded = [&](int bit) {
        return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
    };
    check(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0, "a descriptor of another swizzle");
    const uint32_t leading = decoded(16), stride = decoded(32);
    const uint32_t offset =
        k_innermost ? line / 8 * stride + line % 8 * 128 + 2 * k
                    : line / 64 * leading + line % 64 * 2 + k / 8 * stride + k % 8 * 128;
    uint16_t bits;
    std::memcpy(&bits, of_address(swizzled(decoded(0) + offset)), sizeof bits);
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

float half_of(uint32_t word, int which) {
    const uint32_t bits = which == 0 ? word << 16 : word & 0xffff0000u;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Loads the thread's fragment of a, rows g and g + 8 of its warp's sixteen rows: from shared
// memory, or from the registers of the four lanes that hold these rows (a word holds k 2t and 2t +
// 1; words 2 and 3 hold the second half of k).
void load_rows(const Product& product, float (&rows)[2][16]) {
    const int lane = static_cast<int>(place.thread.x % 32);
    const int warp = static_cast<int>(place.thread.x / 32 % 4);
    if (!product.from_registers) {
        for (int half = 0; half < 2; ++half) {
            for (int k = 0; k < 16; ++k)
                rows[half][k] = element(product.a, 16 * warp + lane / 4 + 8 * half, k, true);
        }
        return;
    }
    std::memcpy(warp_slot(lane), product.held, sizeof product.held);
    warp_barrier();
    for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < 16; ++k) {
            uint32_t words[4];
            std::memcpy(words, warp_slot(lane / 4 * 4 + k % 8 / 2), sizeof words);
            rows[half][k] = half_of(words[half + k / 8 * 2], k % 2);
        }
    }
    warp_barrier();
}

void compute(const Product& product) {
    float rows[2][16];
    load_rows(product, rows);
    const int t = static_cast<int>(place.thread.x % 4);
    for (int column = 0; column < product.columns / 4; ++column) {
        const int line = column / 2 * 8 + 2 * t + column % 2;
        float b[16];
        for (int k = 0; k < 16; ++k)
            b[k] = element(product.b, line, k, !product.from_registers);
        for (int half = 0; half < 2; ++half) {
            float total = 0.0f;
            for (int k = 0; k < 16; ++k)
                total += rows[half][k] * b[k];
            float& sum = product.sums[column / 2 * 4 + 2 * half + column % 2];
            sum = product.add ? sum + total : total;
        }
    }
}

void note(uint64_t value) {
    uint64_t& digest = issued[place.thread.x / 32];
    digest = (digest ^ value) * 0x9e3779b97f4a7c15ull + 1;
}

} // namespace

uint32_t shared_address(const void* pointer) {
    return kSharedBegin +
           static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - dynamic_shared);
}

void barrier_init(uint64_t* barrier, int count) {
    check(shared_address(barrier) % 8 == 0, "a barrier that is not aligned");
    const Counts counts{0, static_cast<uint16_t>(count), static_cast<uint16_t>(count & 0x7fff), 0};
    std::memcpy(barrier, &counts, sizeof counts);
}

void barrier_arrive(uint64_t* barrier, int64_t bytes) {
    Counts counts = load(barrier);
    check(counts.missing > 0, "more arrivals at a barrier than it counts");
    --counts.missing;
    counts.bytes += static_cast<int32_t>(bytes);
    store(barrier, counts);
}

void barrier_wait(uint64_t* barrier, uint32_t parity) {
    wait_until([=] {
        if (load(barrier).phase == parity)
            finish_copies_to(barrier);
        return load(barrier).phase != parity;
    });
}

void copy_box(void* to, const TensorMap& map, uint64_t* barrier, const int (&at)[4]) {
    Copy copy{static_cast<unsigned char*>(to), map, barrier, {at[0], at[1], at[2], at[3]}};
    const uint32_t begin = shared_address(to);
    check(begin % 128 == 0, "a copy to memory that is not aligned");
    of_address(begin + box_bytes(map) - 1);
    std::memset(to, 0xff, box_bytes(map)); // NaN
    copies.push_back(copy);
}

void multiply(float* sums, int columns, const uint64_t* a, const uint32_t* held, uint64_t b,
              bool add) {
    Products& own = products[place.thread.x];
    Product product{sums, columns, a == nullptr, add, a == nullptr ? 0 : *a, b, {}, own.committed};
    if (held != nullptr)
        std::memcpy(product.held, held, sizeof product.held);
    note(product.a);
    note(b);
    if (place.block.x % 2 == 1)
        compute(product);
    else
        own.going.push_back(product);
}

void products_commit() {
    ++products[place.thread.x].committed;
}

void products_wait(int later) {
    Products& own = products[place.thread.x];
    while (!own.going.empty() && own.going.front().group < own.committed - later) {
        const Product product = own.going.front();
        own.going.pop_front();
        compute(product);
    }
}

void named_barrier(int id, int threads) {
    check(id > 0 && id < 16, "a barrier that does not exist");
    check(threads % 32 == 0, "a barrier of parts of warps");
    wait_at_named(id, static_cast<unsigned>(threads));
}

// Called by run_grid before and after each block.
void begin_hopper_block() {
    copies.clear();
    products.clear();
    issued.clear();
}

void end_hopper_block() {
    check(copies.empty(), "a block ended before its copies");
    for (const auto& [thread, own] : products)
        check(own.going.empty(), "a block ended before its products");
    for (const auto& [warp, digest] : issued) {
        check(issued.count(warp / 4 * 4) == 1 && issued[warp / 4 * 4] == digest,
              "warps of a group issued different products");
    }
    for (const auto& [warp, digest] : issued)
        check(issued.count(warp / 4 * 4 + 3) == 1, "a product of fewer than four warps");
}

} // namespace penstock::emulated
