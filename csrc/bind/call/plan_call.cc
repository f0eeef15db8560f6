#include "bind/call/plan_call.h"

#include <cstring>
#include <stdexcept>

namespace penstock::bind {
namespace {

const TensorView& of(const PerInput<TensorView>& inputs, StepInput input) {
    return inputs[static_cast<size_t>(input)];
}

void require_rows(const PerInput<TensorView>& given, StepInput input, int64_t expected) {
    const int64_t actual = of(given, input).shape[0];
    if (actual != expected) {
        throw std::invalid_argument(std::string(step_input_names[static_cast<size_t>(input)]) +
                                    ": has " + std::to_string(actual) + " rows, expected " +
                                    std::to_string(expected));
    }
}

void require_at_most(const char* what, int64_t actual, int64_t most) {
    if (actual > most) {
        throw std::invalid_argument(std::string(what) + ": " + std::to_string(actual) +
                                    " exceed the plan's maximum of " + std::to_string(most));
    }
}

} // namespace

void narrow(std::optional<Extent>& bound, const Extent& other) {
    if (!bound || other.value < bound->value) {
        bound = other;
    }
}

StepSize StepPlan::measure(const PerInput<TensorView>& given) const {
    const StepSize size{of(given, StepInput::tokens).shape[0],
                        of(given, StepInput::context_lens).shape[0],
                        of(given, StepInput::sample_rows).shape[0]};
    for (const StepInput input : present) {
        const Axis axis = inputs[static_cast<size_t>(input)].axis;
        require_rows(given, input, extent(axis, size, 0));
    }
    require_at_most("tokens", size.tokens, plan.largest().tokens);
    require_at_most("context_lens", size.rows, plan.largest().rows);
    require_at_most("sample_rows", size.samples, plan.largest().samples);
    for (const StepInput input : present) {
        const auto i = static_cast<size_t>(input);
        if (is_table(input)) {
            const std::string what = std::string(step_input_names[i]) + ": columns";
            require_at_most(what.c_str(), given[i].shape[1], inputs[i].view.shape[1]);
        }
    }
    return size;
}

void StepPlan::copy(const PerInput<TensorView>& given) {
    for (const StepInput input : present) {
        const auto i = static_cast<size_t>(input);
        const TensorView to = plan.view(inputs[i]);
        const int64_t width = given[i].rank == 2 ? given[i].shape[1] : 1;
        for (int64_t row = 0; row < to.shape[0]; ++row) {
            if (given[i].stride[0] == width && to.stride[0] == width) {
                std::memcpy(to.data, given[i].data,
                            static_cast<size_t>(to.shape[0] * width) * sizeof(int32_t));
                break;
            }
            std::memcpy(to.row<int32_t>(row), given[i].row<int32_t>(row),
                        static_cast<size_t>(width) * sizeof(int32_t));
        }
    }
}

ChunkViews StepPlan::chunks_of(StepInput contexts, StepInput tables,
                               const PerInput<TensorView>& given) const {
    const auto view = [&](StepInput input) {
        return plan.view(inputs[static_cast<size_t>(input)]);
    };
    ChunkViews chunks{view(StepInput::query_starts), view(contexts), view(tables)};
    chunks.block_tables.shape[1] = of(given, tables).shape[1];
    return chunks;
}

void StepPlan::check(const StepSize& size, const PerInput<TensorView>& given) {
    for (const StepInput input : present) {
        const auto i = static_cast<size_t>(input);
        if (const auto& bound = limits.below[i]) {
            check_below(plan.view(inputs[i]), extent(bound->axis, size, bound->value),
                        step_input_names[i]);
        }
        if (const auto& bound = limits.negative_or_below[i]) {
            check_negative_or_below(plan.view(inputs[i]), extent(bound->axis, size, bound->value),
                                    step_input_names[i]);
        }
    }
    constexpr auto slots = static_cast<size_t>(StepInput::slots);
    if (limits.below[slots]) {
        check_distinct(plan.view(inputs[slots]), step_input_names[slots]);
    }
    if (limits.starts) {
        constexpr auto starts = static_cast<size_t>(StepInput::query_starts);
        check_starts(plan.view(inputs[starts]), size.tokens, step_input_names[starts]);
    }
    const auto view = [&](StepInput input) {
        return plan.view(inputs[static_cast<size_t>(input)]);
    };
    if (limits.adapter_slots > 0) {
        check_groups({view(StepInput::adapter_order), view(StepInput::adapter_starts),
                      view(StepInput::adapter_slots)},
                     limits.adapter_slots, check_grouped, "adapter_");
        check_groups({view(StepInput::sampled_order), view(StepInput::sampled_starts),
                      view(StepInput::adapter_slots)},
                     limits.adapter_slots, check_grouped, "sampled_");
    }
    if (limits.cache) {
        const ChunkViews chunks =
            chunks_of(StepInput::context_lens, StepInput::block_tables, given);
        check_chunks(chunks, size.tokens, *limits.cache);
        if (limits.visible) {
            constexpr auto visible = static_cast<size_t>(StepInput::media_visible);
            check_visible(view(StepInput::media_visible), chunks, step_input_names[visible]);
        }
    }
    if (limits.cross_cache) {
        check_chunks(chunks_of(StepInput::cross_context_lens, StepInput::cross_block_tables, given),
                     size.tokens, *limits.cross_cache);
    }
    if (limits.states) {
        check_states({view(StepInput::query_starts), view(StepInput::context_lens),
                      view(StepInput::state_source), view(StepInput::state_base),
                      view(StepInput::state_target), view(StepInput::state_keep),
                      view(StepInput::state_save), view(StepInput::state_save_after)},
                     size.tokens, *limits.states, "");
    }
}

void StepPlan::run(ThreadPool::Lease& lease, const StepSize& size,
                   const PerInput<TensorView>& given) {
    plan.resize(size);
    copy(given);
    check(size, given);
    if (profiling) {
        plan.run_timed(lease);
    } else {
        plan.run(lease);
    }
}

} // namespace penstock::bind
