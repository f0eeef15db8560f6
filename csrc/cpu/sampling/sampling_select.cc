#include "cpu/sampling/sampling_select.h"

#include <algorithm>
#include <array>

namespace penstock::cpu {
namespace {

bool better(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

bool earlier(const Candidate& a, const Candidate& b) {
    return a.id < b.id;
}

} // namespace

void keep_best(Candidate* candidates, int64_t n, int64_t k) {
    if (k < n)
        std::nth_element(candidates, candidates + k, candidates + n, better);
}

// Sorts by descending logits. Candidates with equal logits arrive in ascending order of ids and
// keep it.
void sort_best_first(Candidate* candidates, int64_t n) {
    if (!std::is_sorted(candidates, candidates + n, better)) {
        std::sort(candidates, candidates + n, better);
    }
}

void sort_by_id(Candidate* candidates, int64_t n) {
    std::sort(candidates, candidates + n, earlier);
}

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
double random_uniform(uint64_t seed, uint64_t position) {
    std::array<uint32_t, 4> counter{static_cast<uint32_t>(position),
                                    static_cast<uint32_t>(position >> 32), 0, 0};
    auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t{0xD2511F53} * counter[0];
        const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
        counter = {
            static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(second),
            static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(first)};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return static_cast<double>(counter[0] >> 8) * 0x1p-24;
}

} // namespace penstock::cpu
