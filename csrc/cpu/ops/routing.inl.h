// Mixture of experts: the choice of experts and their shares. Included by the ISA files.
//
//   route_experts  tensors:  0 logits [T, E] float32; 1 chosen [T, C] int32; 2 shares [T, C]
//                            float32
//                  integers: scoring (0 softmax, 1 sigmoid, 2 sparsemixer), renormalize, groups,
//                            groups_per_token, best_of_group
//                  reals:    epsilon, scale, jitter
//   route_experts_by_bias  as route_experts, with 3 bias [E] float32, added to the scores for the
//                            choice
//   route_scaled_experts   as route_experts, with 3 expert_scale [E] float32, a factor of the share
//                            of each expert
//
// kernels/routing.py documents the rule. Experts are compared by logits or, with a bias, by score +
// bias. In limited groups, the candidates of the best groups are copied, in ascending order, and
// chosen from.
#pragma once

#include <cstring>

#include "cpu/ops/activation.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace routing {

using Tasks = RowTasks<4096>;

// The meaning of tensor 3.
enum class Extra : uint8_t { none, bias, scale };

enum Scoring : int64_t { softmax, sigmoid, sparsemixer };

struct Rule {
    int64_t count, per_token;
    int64_t scoring, groups, groups_per_token, best_of_group;
    bool renormalize;
    float epsilon, scale, jitter;

    explicit Rule(const Arguments& call)
        : count(call.tensor[0].shape[1]), per_token(call.tensor[1].shape[1]),
          scoring(call.integer[0]), groups(call.integer[2]), groups_per_token(call.integer[3]),
          best_of_group(call.integer[4]), renormalize(call.integer[1] != 0), epsilon(call.real[0]),
          scale(call.real[1]), jitter(call.real[2]) {}

    bool limited() const { return groups_per_token < groups; }
};

// The scratch memory of a task.
struct Buffers {
    float* scores;      // [E] choice scores, or logits without the first choice
    float* candidates;  // [E] of the best groups
    int32_t* number;    // [E] the experts' numbers of `candidates`
    float* group_score; // [groups]
    int32_t* best;      // [groups] the best groups
    int32_t* taken;     // [groups] whether the group is among the best
    size_t bytes;

    Buffers(void* memory, const Rule& rule) {
        char* next = static_cast<char*>(memory);
        const auto take = [&]<class T>(T*& start, int64_t count) {
            start = reinterpret_cast<T*>(next);
            next += ceil_div(count, kLanes) * kLanes * static_cast<int64_t>(sizeof(T));
        };
        take(scores, rule.count);
        take(candidates, rule.count);
        take(number, rule.count);
        take(group_score, rule.groups);
        take(best, rule.groups);
        take(taken, rule.groups);
        bytes = static_cast<size_t>(next - static_cast<char*>(memory));
    }
};

// Returns the numbers that a row reads: all logits once for each chosen expert.
int64_t work_of_row(const Arguments& call) {
    return call.tensor[0].shape[1] * call.tensor[1].shape[1];
}

int64_t tasks(const Arguments& call, int) {
    return Tasks::count(call.tensor[0].shape[0], work_of_row(call));
}

size_t workspace_bytes(const Arguments& call) {
    return Buffers(nullptr, Rule(call)).bytes;
}

// Maps floats to integers in the same order. NaNs are ordered too: above +inf, or below -inf if
// their sign bit is set. -0 equals 0.
PENSTOCK_INLINE int32_t order_of(float value) {
    const float plain = value + 0.0f;
    int32_t bits;
    std::memcpy(&bits, &plain, sizeof bits);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// Chooses experts in descending order of logits; of two equal logits, the expert with the lower
// number comes first. Each round finds the largest logit after the one chosen last.
PENSTOCK_INLINE void choose(const float* logits, int64_t count, int64_t per_token,
                            int32_t* chosen) {
    int64_t last = -1;
    for (int64_t c = 0; c < per_token; ++c) {
        int64_t best = -1;
        for (int64_t e = 0; e < count; ++e) {
            if (last >= 0) {
                const int32_t own = order_of(logits[e]), before = order_of(logits[last]);
                if (own > before || (own == before && e <= last))
                    continue;
            }
            if (best < 0 || order_of(logits[e]) > order_of(logits[best]))
                best = e;
        }
        chosen[c] = static_cast<int32_t>(best);
        last = best;
    }
}

PENSTOCK_INLINE float sum_of_exponentials(const float* logits, int64_t count, float highest) {
    F32 sum = broadcast(0.0f);
    for (int64_t i = 0; i < count; i += kLanes) {
        const int n = lanes_from(i, count);
        const F32 value = exp(load_lanes(logits + i, n) - broadcast(highest));
        sum = sum + select(first(n), value, broadcast(0.0f));
    }
    return reduce_add(sum);
}

PENSTOCK_INLINE float largest(const float* values, int64_t count) {
    F32 top = broadcast(-__builtin_inff());
    for (int64_t i = 0; i < count; i += kLanes) {
        const int n = lanes_from(i, count);
        top = select(first(n), max(top, load_lanes(values + i, n)), top);
    }
    return reduce_max(top);
}

PENSTOCK_INLINE F32 sigmoid_of(F32 x) {
    return broadcast(1.0f) / (broadcast(1.0f) + exp(-x));
}

// Writes the score of each expert, plus its bias if there is one.
PENSTOCK_INLINE void write_scores(const Rule& rule, const float* logits, const float* bias,
                                  float* scores) {
    float highest = 0.0f, sum = 1.0f;
    if (rule.scoring == softmax) {
        highest = largest(logits, rule.count);
        sum = sum_of_exponentials(logits, rule.count, highest);
    }
    for (int64_t i = 0; i < rule.count; i += kLanes) {
        const int n = lanes_from(i, rule.count);
        const F32 logit = load_lanes(logits + i, n);
        F32 score = rule.scoring == softmax ? exp(logit - broadcast(highest)) / broadcast(sum)
                                            : sigmoid_of(logit);
        if (bias)
            score = score + load_lanes(bias + i, n);
        store_lanes(scores + i, score, n);
    }
}

// Returns the sum of the largest one or two values of a group.
PENSTOCK_INLINE float score_of_group(const float* values, int64_t count, int64_t best) {
    int32_t top[2];
    choose(values, count, best < count ? best : count, top);
    return best < 2 || count < 2 ? values[top[0]] : values[top[0]] + values[top[1]];
}

// Chooses by `ranked` among the experts of the token's best groups. `scores`: the values from which
// the scores of groups are summed.
PENSTOCK_INLINE void choose_within_groups(const Rule& rule, const float* ranked,
                                          const float* scores, const Buffers& buffer,
                                          int32_t* chosen) {
    const int64_t each = quotient(rule.count, rule.groups);
    for (int64_t g = 0; g < rule.groups; ++g) {
        buffer.group_score[g] = score_of_group(scores + g * each, each, rule.best_of_group);
        buffer.taken[g] = 0;
    }
    choose(buffer.group_score, rule.groups, rule.groups_per_token, buffer.best);
    for (int64_t i = 0; i < rule.groups_per_token; ++i)
        buffer.taken[buffer.best[i]] = 1;
    int64_t count = 0;
    for (int64_t g = 0; g < rule.groups; ++g) {
        for (int64_t e = g * each; buffer.taken[g] && e < (g + 1) * each; ++e, ++count) {
            buffer.candidates[count] = ranked[e];
            buffer.number[count] = static_cast<int32_t>(e);
        }
    }
    choose(buffer.candidates, count, rule.per_token, chosen);
    for (int64_t c = 0; c < rule.per_token; ++c)
        chosen[c] = buffer.number[chosen[c]];
}

PENSTOCK_INLINE void choose_experts(const Rule& rule, const float* logits, const float* bias,
                                    const Buffers& buffer, int32_t* chosen) {
    const bool scored = bias || (rule.limited() && rule.best_of_group > 1);
    if (scored)
        write_scores(rule, logits, bias, buffer.scores);
    const float* ranked = bias ? buffer.scores : logits;
    if (!rule.limited())
        return choose(ranked, rule.count, rule.per_token, chosen);
    choose_within_groups(rule, ranked, scored ? buffer.scores : logits, buffer, chosen);
}

// Returns the logit that is subtracted before exponentials: the largest of those that are summed.
PENSTOCK_INLINE float reference_logit(const Rule& rule, const float* logits, const int32_t* chosen,
                                      bool by_logit) {
    if (by_logit)
        return logits[chosen[0]];
    if (!rule.renormalize)
        return largest(logits, rule.count);
    float highest = logits[chosen[0]];
    for (int64_t c = 1; c < rule.per_token; ++c)
        highest = logits[chosen[c]] > highest ? logits[chosen[c]] : highest;
    return highest;
}

// `by_logit`: the chosen experts have the largest of all logits, in descending order.
PENSTOCK_INLINE void write_softmax(const Rule& rule, const float* logits, const int32_t* chosen,
                                   bool by_logit, float* share) {
    const float highest = reference_logit(rule, logits, chosen, by_logit);
    for (int64_t c = 0; c < rule.per_token; ++c)
        share[c] = logits[chosen[c]] - highest;
    float sum = 0.0f;
    for (int64_t c = 0; c < rule.per_token; c += kLanes) {
        const int n = lanes_from(c, rule.per_token);
        store_lanes(share + c, exp(load_lanes(share + c, n)), n);
    }
    for (int64_t c = 0; c < rule.per_token; ++c)
        sum += share[c];
    if (!rule.renormalize)
        sum = sum_of_exponentials(logits, rule.count, highest);
    for (int64_t c = 0; c < rule.per_token; ++c)
        share[c] /= sum;
}

PENSTOCK_INLINE void write_sigmoids(const Rule& rule, const float* logits, const int32_t* chosen,
                                    float* share) {
    for (int64_t c = 0; c < rule.per_token; ++c)
        share[c] = logits[chosen[c]];
    for (int64_t c = 0; c < rule.per_token; c += kLanes) {
        const int n = lanes_from(c, rule.per_token);
        store_lanes(share + c, sigmoid_of(load_lanes(share + c, n)), n);
    }
    if (!rule.renormalize)
        return;
    float sum = 0.0f;
    for (int64_t c = 0; c < rule.per_token; ++c)
        sum += share[c];
    sum += rule.epsilon;
    for (int64_t c = 0; c < rule.per_token; ++c)
        share[c] /= sum;
}

// Returns the sum of the exponentials of the logits near `highest`.
PENSTOCK_INLINE float sum_of_near(const float* logits, int64_t count, float highest, float most) {
    const F32 top = broadcast(highest);
    F32 sum = broadcast(0.0f);
    for (int64_t i = 0; i < count; i += kLanes) {
        const int n = lanes_from(i, count);
        const F32 logit = load_lanes(logits + i, n);
        const Mask far = less(broadcast(most), (top - logit) / max(abs(logit), top));
        sum = sum + select(first(n) & !far, exp(logit - top), broadcast(0.0f));
    }
    return reduce_add(sum);
}

PENSTOCK_INLINE void mix_sparsely(const Rule& rule, const float* logits, const Buffers& buffer,
                                  int32_t* chosen, float* share) {
    choose(logits, rule.count, 2, chosen);
    std::memcpy(buffer.scores, logits, static_cast<size_t>(rule.count) * sizeof(float));
    const float most = 2.0f * rule.jitter;
    share[0] = 1.0f / sum_of_near(logits, rule.count, logits[chosen[0]], most);
    buffer.scores[chosen[0]] = -__builtin_inff();
    share[1] = 1.0f / sum_of_near(buffer.scores, rule.count, logits[chosen[1]], most);
}

// Runs a task. `bias` and `expert_scale` may be null. Not inlined: all kernels share this code.
[[gnu::noinline]] void route(const Arguments& call, int64_t task, Workspace& workspace,
                             const float* bias, const float* expert_scale) {
    const TensorView &logits = call.tensor[0], &chosen = call.tensor[1], &shares = call.tensor[2];
    const Rule rule(call);
    const Buffers buffer(workspace.data, rule);
    Tasks::each(task, logits.shape[0], work_of_row(call), [&](int64_t row) {
        const float* from = logits.row<float>(row);
        int32_t* choice = chosen.row<int32_t>(row);
        float* share = shares.row<float>(row);
        if (rule.scoring == sparsemixer) {
            mix_sparsely(rule, from, buffer, choice, share);
        } else {
            choose_experts(rule, from, bias, buffer, choice);
            if (rule.scoring == softmax) {
                write_softmax(rule, from, choice, !bias && !rule.limited(), share);
            } else {
                write_sigmoids(rule, from, choice, share);
            }
        }
        for (int64_t c = 0; c < rule.per_token; ++c) {
            share[c] *= rule.scale;
            if (expert_scale)
                share[c] *= expert_scale[choice[c]];
        }
    });
}

template <Extra extra>
void run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const float* own = extra == Extra::none ? nullptr : call.tensor[3].row<float>(0);
    route(call, task, workspace, extra == Extra::bias ? own : nullptr,
          extra == Extra::scale ? own : nullptr);
}

} // namespace routing

constexpr Kernel kRoutingKernels[] = {
    {"route_experts", one_phase, routing::tasks, routing::run<routing::Extra::none>,
     routing::workspace_bytes},
    {"route_experts_by_bias", one_phase, routing::tasks, routing::run<routing::Extra::bias>,
     routing::workspace_bytes},
    {"route_scaled_experts", one_phase, routing::tasks, routing::run<routing::Extra::scale>,
     routing::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
