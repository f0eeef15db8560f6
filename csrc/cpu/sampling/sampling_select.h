// The scalar side of sampling: order statistics of a few candidates, and the uniform number.
// Compiled once, for the baseline, and called by the kernels of every ISA.
#pragma once

#include <cstdint>

namespace penstock::cpu {

// One token of a row. Better: the higher logit, then the lower id. No logit is NaN.
struct Candidate {
    float logit;
    int32_t id;
};

// Moves the k best to the front, in any order.
void keep_best(Candidate* candidates, int64_t n, int64_t k);

void sort_best_first(Candidate* candidates, int64_t n);
void sort_by_id(Candidate* candidates, int64_t n);

// The number in [0, 1), a multiple of 2^-24, of a row's draw: the first word of Philox 4x32-10 with
// key = seed and counter = position, as kernels/sampler_inputs.py states.
double draw_uniform(uint64_t seed, uint64_t position);

} // namespace penstock::cpu
