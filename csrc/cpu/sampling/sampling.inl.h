// Samples tokens from logits, and computes log-probabilities. Included by the ISA files.
//
//   argmax        tensors: 0 logits [S, V] float32; 1 out [S] int32
//   sample        tensors: 0 logits [S, V] float32; 1 temperature [S] float32; 2 top_k [S] int32;
//                          3 top_p [S]; 4 min_p [S] float32; 5 seed [S]; 6 position [S] (the bits
//                          of uint64, as int64); 7 out [S] int32
//   top_logprobs  tensors: 0 logits [S, V] float32; 1 rows [R] int32 in 0..S-1; 2 tokens [R] int32
//                          in 0..V-1; 3 out [R] float32; 4 ids [R, count] int32; 5 logprobs
//                          [R, count] float32; count <= V
//
// The semantics of `sample` and `top_logprobs` are defined in kernels/sampler_inputs.py. Logits are
// not modified. For a row with NaN or +inf, or with only -inf, argmax and sample return -1, and
// top_logprobs returns NaN and ids -1. One task per row; a thread's workspace is 12.2 bytes per
// token of the vocabulary. Probability mass is summed in float32 within 64 (or 512) tokens, and in
// double over larger ranges.
#pragma once

#include "cpu/row_tasks.inl.h"
#include "cpu/sampling/sampling_top_k.inl.h"
#include "cpu/sampling/sampling_top_p.inl.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace sampling {

// Fills row.sums with the kept weight of each chunk and returns the total.
PENSTOCK_INLINE double sum_kept(const Row& row, const Kept& kept) {
    double total = 0.0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        F32 sum = broadcast(0.0f);
        if (row.maxima[chunk] >= kept.low) {
            each_vector(row, chunk, [&](int64_t i, int n, F32 x) {
                const F32 weight = load_lanes(row.weights + i, n), low = broadcast(kept.low);
                // A logit equal to `low` is kept only in the first `ties` lanes, whose ids are at
                // most last_id.
                const int64_t ties = kept.last_id < i ? 0 : kept.last_id - i + 1;
                const Mask tie =
                    equal(x, low) & first(ties < kLanes ? static_cast<int>(ties) : kLanes);
                const Mask inside = (less(low, x) | tie) & !less(weight, broadcast(kept.least));
                sum = sum + select(inside, weight, broadcast(0.0f));
            });
        }
        row.sums[chunk] = static_cast<double>(reduce_add(sum));
        total += row.sums[chunk];
    }
    return total;
}

// Returns the first kept id whose cumulative weight exceeds `target`. If rounding leaves no such
// id, returns the last kept id with a weight.
PENSTOCK_INLINE int32_t choose_token(const Row& row, const Kept& kept, double target) {
    double mass = 0.0;
    int64_t chosen = 0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        if (row.sums[chunk] == 0.0)
            continue;
        chosen = chunk;
        if (mass + row.sums[chunk] > target)
            break;
        mass += row.sums[chunk];
    }
    const int64_t begin = chosen * kChunk;
    int64_t last = begin;
    for (int64_t id = begin; id < begin + kChunk && id < row.vocabulary; ++id) {
        const float weight = row.weights[id];
        if (weight == 0.0f || !kept.has(row.logits[id], id, weight))
            continue;
        last = id;
        mass += static_cast<double>(weight);
        if (mass > target)
            break;
    }
    return static_cast<int32_t>(last);
}

// Computes the weights of the candidates: row.weights[i] belongs to candidate i.
PENSTOCK_INLINE void weigh_candidates(const Row& row, Scale scale, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        row.weights[i] = row.candidates[i].logit;
    for (int64_t i = 0; i < count; i += kLanes) {
        const int n = lanes_from(i, count);
        store_lanes(row.weights + i, scale.weight(load_lanes(row.weights + i, n)), n);
    }
}

struct Settings {
    float temperature, top_p, min_p;
    int64_t top_k;
    double uniform;
};

PENSTOCK_INLINE int32_t draw_of_best(const Row& row, Scale scale, const Settings& settings) {
    int64_t count = settings.top_k;
    gather_best(row, scale.highest, count);
    if (settings.top_p < 1.0f) {
        sort_best_first(row.candidates, count);
        weigh_candidates(row, scale, count);
        double all = 0.0, mass = 0.0;
        for (int64_t i = 0; i < count; ++i)
            all += static_cast<double>(row.weights[i]);
        const double wanted = static_cast<double>(settings.top_p) * all;
        int64_t prefix = 0;
        while (prefix < count && (prefix == 0 || mass < wanted)) {
            mass += static_cast<double>(row.weights[prefix++]);
        }
        count = prefix;
    }
    sort_by_id(row.candidates, count);
    weigh_candidates(row, scale, count);
    double total = 0.0, mass = 0.0;
    for (int64_t i = 0; i < count; ++i) {
        if (row.weights[i] < settings.min_p)
            row.weights[i] = 0.0f;
        total += static_cast<double>(row.weights[i]);
    }
    int32_t chosen = row.candidates[0].id;
    for (int64_t i = 0; i < count; ++i) {
        if (row.weights[i] == 0.0f)
            continue;
        chosen = row.candidates[i].id;
        mass += static_cast<double>(row.weights[i]);
        if (mass > settings.uniform * total)
            break;
    }
    return chosen;
}

// Returns the shorter of two prefixes.
PENSTOCK_INLINE Kept narrower(const Kept& a, const Kept& b) {
    return a.low > b.low || (a.low == b.low && a.last_id < b.last_id) ? a : b;
}

PENSTOCK_INLINE int32_t sample_row(const Row& row, const Settings& settings) {
    const float highest = scan(row);
    if (highest == -kInfinity)
        return -1;
    if (settings.temperature <= 0.0f || settings.top_p <= 0.0f || settings.top_k == 1) {
        return find(row, highest);
    }
    const float slope = kLog2e / settings.temperature;
    const Scale scale{highest, slope < __FLT_MAX__ ? slope : __FLT_MAX__};
    const bool limited = settings.top_k > 0 && settings.top_k < row.vocabulary;
    if (limited && settings.top_k <= kSmallTopK)
        return draw_of_best(row, scale, settings);
    if (!limited && settings.top_p >= 1.0f) {
        const double total = weigh(row, scale, settings.min_p);
        return choose_token(row, {-kInfinity, INT64_MAX, settings.min_p}, settings.uniform * total);
    }
    const double all = weigh(row, scale, 0.0f);
    // Logits below this have a weight of zero, which was not computed.
    Kept kept{scale.logit(-127.0f), INT64_MAX, 0.0f};
    if (limited)
        kept = narrower(kept, best(row, highest, settings.top_k));
    if (settings.top_p < 1.0f) {
        const double mass = limited ? sum_kept(row, kept) : all;
        const auto wanted = static_cast<double>(settings.top_p) * mass;
        kept = narrower(kept, nucleus(row, scale, kept.low, mass, wanted));
    }
    kept.least = settings.min_p;
    const double total = sum_kept(row, kept);
    return choose_token(row, kept, settings.uniform * total);
}

int64_t tasks(const Arguments& call, int) {
    return call.tensor[0].shape[0];
}

size_t workspace_bytes(const Arguments& call) {
    return row_bytes(call.tensor[0].shape[1]);
}

int64_t top_logprobs_tasks(const Arguments& call, int) {
    return call.tensor[1].shape[0];
}

PENSTOCK_INLINE Row row_of_task(const Arguments& call, int64_t row, Workspace& workspace) {
    return row_of(call.tensor[0].row<float>(row), call.tensor[0].shape[1], workspace.data);
}

void argmax_run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const Row row = row_of_task(call, task, workspace);
    const float highest = scan(row);
    call.tensor[1].row<int32_t>(0)[task] = highest == -kInfinity ? -1 : find(row, highest);
}

void sample_run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const auto seed = static_cast<uint64_t>(call.tensor[5].row<int64_t>(0)[task]);
    const auto position = static_cast<uint64_t>(call.tensor[6].row<int64_t>(0)[task]);
    const float min_p = call.tensor[4].row<float>(0)[task];
    const Settings settings{call.tensor[1].row<float>(0)[task], call.tensor[3].row<float>(0)[task],
                            min_p < 1.0f ? min_p : 1.0f, call.tensor[2].row<int32_t>(0)[task],
                            random_uniform(seed, position)};
    call.tensor[7].row<int32_t>(0)[task] = sample_row(row_of_task(call, task, workspace), settings);
}

void top_logprobs_run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const Row row = row_of_task(call, call.tensor[1].row<int32_t>(0)[task], workspace);
    const int64_t count = call.tensor[4].shape[1];
    float& own = call.tensor[3].row<float>(0)[task];
    int32_t* ids = call.tensor[4].row<int32_t>(task);
    float* logprobs = call.tensor[5].row<float>(task);
    const float highest = scan(row);
    if (highest == -kInfinity) {
        own = __builtin_nanf("");
        for (int64_t i = 0; i < count; ++i)
            ids[i] = -1, logprobs[i] = own;
        return;
    }
    const double total = __builtin_log(mass_of(row, {highest, kLog2e}));
    const auto logprob = [&](float logit) {
        return static_cast<float>(static_cast<double>(logit) - highest - total);
    };
    own = logprob(row.logits[call.tensor[2].row<int32_t>(0)[task]]);
    if (count == 0)
        return;
    gather_best(row, highest, count);
    sort_best_first(row.candidates, count);
    for (int64_t i = 0; i < count; ++i) {
        ids[i] = row.candidates[i].id;
        logprobs[i] = logprob(row.candidates[i].logit);
    }
}

} // namespace sampling

constexpr Kernel kSamplingKernels[] = {
    {"argmax", one_phase, sampling::tasks, sampling::argmax_run, sampling::workspace_bytes},
    {"sample", one_phase, sampling::tasks, sampling::sample_run, sampling::workspace_bytes},
    {"top_logprobs", one_phase, sampling::top_logprobs_tasks, sampling::top_logprobs_run,
     sampling::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
