// A finished plan with its step inputs, and the checks of these inputs before a run. Does not use
// Python.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "bind/call/extents.h"
#include "bind/call/state_checks.h"
#include "bind/call/value_checks.h"
#include "plan/plan.h"

namespace penstock::bind {

// The inputs of a step, in the order of StepInputs in kernels/ops_interface.py.
enum class StepInput : uint8_t {
    tokens,
    positions,
    slots,
    query_starts,
    context_lens,
    block_tables,
    sample_rows,
    adapter_slots, // only in plans with adapters, like the next four
    adapter_order,
    adapter_starts,
    sampled_order,
    sampled_starts,
    media_index, // only in plans with media
    media_time,  // only in plans with three positions per token, like the next three
    media_height,
    media_width,
    media_rope_rows,
    media_visible,      // only in plans in which tokens see later tokens
    cross_context_lens, // only in plans with cross-attention, like the next one
    cross_block_tables,
    state_source, // only in plans with recurrent layers, like the next five
    state_base,
    state_target,
    state_keep,
    state_save,
    state_save_after,
    is_prompt, // only in plans that tell prompt tokens apart, like the next one
    sampled_is_prompt
};
constexpr size_t num_base_inputs = 7;
constexpr size_t num_step_inputs = 28;
constexpr std::array<const char*, num_step_inputs> step_input_names{"tokens",
                                                                    "positions",
                                                                    "slots",
                                                                    "query_starts",
                                                                    "context_lens",
                                                                    "block_tables",
                                                                    "sample_rows",
                                                                    "adapter_slots",
                                                                    "adapter_order",
                                                                    "adapter_starts",
                                                                    "sampled_order",
                                                                    "sampled_starts",
                                                                    "media_index",
                                                                    "media_time",
                                                                    "media_height",
                                                                    "media_width",
                                                                    "media_rope_rows",
                                                                    "media_visible",
                                                                    "cross_context_lens",
                                                                    "cross_block_tables",
                                                                    "state_source",
                                                                    "state_base",
                                                                    "state_target",
                                                                    "state_keep",
                                                                    "state_save",
                                                                    "state_save_after",
                                                                    "is_prompt",
                                                                    "sampled_is_prompt"};

// Returns whether an input has two dimensions, [R, max_blocks].
constexpr bool is_table(StepInput input) {
    return input == StepInput::block_tables || input == StepInput::cross_block_tables;
}

template <class T>
using PerInput = std::array<T, num_step_inputs>;

// Limits on the values of the inputs, which follow from the recorded calls.
struct InputLimits {
    PerInput<std::optional<Extent>> below{};
    PerInput<std::optional<Extent>> negative_or_below{};
    std::optional<CacheExtent> cache;
    std::optional<CacheExtent> cross_cache; // of the contexts that cross-attention reads
    std::optional<StateExtent> states;
    bool starts = false; // query_starts must ascend from 0 to the number of tokens
    int64_t adapter_slots = 0;
    bool visible = false; // media_visible must fit the chunks
};

// Sets `bound` to the smaller of `bound` and `other`. All bounds of one input have the same axis.
void narrow(std::optional<Extent>& bound, const Extent& other);

struct StepPlan {
    Plan plan;
    PerInput<PlanTensor> inputs;
    PlanTensor output;
    InputLimits limits;
    bool profiling = false;
    std::vector<StepInput> present;    // the inputs of this plan, in ascending order
    std::vector<PlanTensor> kept;      // further results, which stay valid like the output
    DistinctCheck check_distinct = {}; // for the KV cache slots
    DistinctCheck check_grouped = {};  // for the rows of adapter groups
    StateCheck check_states = {};

    // Returns the size of a step with these inputs. Throws std::invalid_argument if their lengths
    // disagree or exceed the recorded maximum.
    StepSize measure(const PerInput<TensorView>& given) const;

    // Copies the inputs into the arena, checks the copies and runs the plan. Checking copies
    // ensures that the caller cannot change inputs between check and use. Not thread-safe.
    void run(ThreadPool::Lease& lease, const StepSize& size, const PerInput<TensorView>& given);

  private:
    void copy(const PerInput<TensorView>& given);
    void check(const StepSize& size, const PerInput<TensorView>& given);
    ChunkViews chunks_of(StepInput contexts, StepInput tables,
                         const PerInput<TensorView>& given) const;
};

} // namespace penstock::bind
