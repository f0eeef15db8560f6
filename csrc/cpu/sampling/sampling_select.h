// The scalar functions of sampling: selection among a few candidates, and random numbers. Compiled
// once, for the baseline, and called by the kernels of every ISA.
#pragma once

#include <cstdint>

namespace penstock::cpu {

// One token of a row. The better of two candidates has the higher logit, or the lower id if the
// logits are equal. No logit is NaN.
struct Candidate {
    float logit;
    int32_t id;
};

// Moves the k best candidates to the front, in any order.
void keep_best(Candidate* candidates, int64_t n, int64_t k);

void sort_best_first(Candidate* candidates, int64_t n);
void sort_by_id(Candidate* candidates, int64_t n);

// Returns a uniform random number in [0, 1), a multiple of 2^-24: the first word of Philox 4x32-10
// with key = seed and counter = position, as defined in kernels/sampler_inputs.py.
double random_uniform(uint64_t seed, uint64_t position);

} // namespace penstock::cpu
