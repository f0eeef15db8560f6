// Python bindings of PlanTensor, Recorder and Plan.
#include "plan/plan.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "bind/bindings.h"
#include "bind/call/call.h"
#include "bind/call/operand.h"
#include "bind/call/plan_call.h"

namespace penstock::bind {
namespace {

constexpr int64_t extent_limit = int64_t{1} << 24;

// Records calls like Recorder, and keeps the Python objects that the calls use alive.
class PyRecorder {
  public:
    PyRecorder(std::shared_ptr<KernelSet> kernels, int64_t max_tokens, int64_t max_rows,
               int64_t max_samples)
        : kernels_(std::move(kernels)), recorder_({max_tokens, max_rows, max_samples}) {
        for (const int64_t most : {max_tokens, max_rows, max_samples}) {
            if (most < 1 || most > extent_limit) {
                throw py::value_error("max_tokens, max_rows, max_samples: must be in 1..2^24");
            }
        }
    }

    // Creates the inputs of a step; may be called once. `further`: names of inputs that not every
    // plan has. Returns the tensors of the base inputs, then those of `further`.
    std::vector<PlanTensor> inputs(int64_t max_blocks, const std::vector<std::string>& further) {
        if (has_inputs_) {
            throw py::value_error("inputs: may be called only once");
        }
        if (max_blocks < 1 || max_blocks > extent_limit) {
            throw py::value_error("max_blocks: must be in 1..2^24");
        }
        constexpr PerInput<Axis> axes{
            Axis::tokens,  Axis::tokens,     Axis::tokens, Axis::row_starts, Axis::rows,
            Axis::rows,    Axis::samples,    Axis::rows,   Axis::tokens,     Axis::row_starts,
            Axis::samples, Axis::row_starts, Axis::tokens, Axis::tokens,     Axis::tokens,
            Axis::tokens,  Axis::tokens,     Axis::tokens, Axis::rows,       Axis::rows,
            Axis::rows,    Axis::rows,       Axis::rows,   Axis::rows,       Axis::rows,
            Axis::rows,    Axis::tokens,     Axis::samples};
        for (size_t i = 0; i < num_base_inputs; ++i) {
            present_.push_back(static_cast<StepInput>(i));
        }
        for (const std::string& name : further) {
            present_.push_back(further_input(name));
        }
        if (std::adjacent_find(present_.begin(), present_.end(), std::greater_equal<>()) !=
            present_.end()) {
            throw py::value_error("further: must be in the order of the step inputs");
        }
        std::vector<PlanTensor> tensors;
        for (const StepInput input : present_) {
            const bool table = is_table(input);
            const auto i = static_cast<size_t>(input);
            inputs_[i] = recorder_.input(DType::i32, axes[i], {&max_blocks, table ? 1U : 0U});
            tensors.push_back(inputs_[i]);
        }
        has_inputs_ = true;
        return tensors;
    }

    // Creates a tensor whose dimension 0 has the axis of `like`.
    PlanTensor empty(const PlanTensor& like, int64_t columns, const std::string& dtype) {
        if (like.axis == Axis::fixed || like.axis == Axis::row_starts) {
            throw py::value_error("like: its first dimension must be tokens, rows or samples");
        }
        return recorder_.temporary(dtype_named(dtype), like.axis, {&columns, 1});
    }

    // Creates a tensor with one row per sequence: row r belongs to the interval from starts[r] to
    // starts[r + 1].
    PlanTensor between(const PlanTensor& starts, int64_t columns) {
        if (starts.axis != Axis::row_starts) {
            throw py::value_error("starts: must be query_starts");
        }
        return recorder_.temporary(DType::f32, Axis::rows, {&columns, 1});
    }

    // Creates a vector that has `extent` elements in every step.
    PlanTensor scratch(int64_t extent, const std::string& dtype) {
        PlanTensor tensor = recorder_.temporary(dtype_named(dtype), Axis::fixed, {&extent, 1});
        tensor.view.rank = 1;
        tensor.view.shape = {extent, 1, 1, 1};
        tensor.view.stride = {1, 1, 1, 1};
        return tensor;
    }

    // Records a call. `flags`: an input that says which rows the call computes: those whose flag is
    // `value`; without it, all rows.
    void call(const std::string& name, const py::sequence& tensors,
              const std::vector<int64_t>& integers, const std::vector<float>& reals,
              const py::object& object, const std::optional<PlanTensor>& flags, int32_t value) {
        const CheckedCall call = check_call(*kernels_, name, {tensors, integers, reals, object});
        for (const ValueBound& bound : call.bounds) {
            if (call.signature->tensors[bound.index].access == Access::write) {
                written_below_[call.tensors[bound.index].buffer] = bound.limit;
            } else {
                limit(call, bound);
            }
        }
        const bool gathers =
            std::any_of(call.bounds.begin(), call.bounds.end(),
                        [](const ValueBound& bound) { return bound.limit.axis == Axis::tokens; });
        for (const ValueBound& run : call.runs) {
            const Parameter& parameter = call.signature->tensors[run.index];
            if (input_of(call, parameter.name, call.tensors[run.index]) !=
                static_cast<size_t>(StepInput::query_starts)) {
                throw py::value_error(name + ": " + parameter.name + ": must be query_starts");
            }
            limits_.starts = true;
        }
        if (call.adapter_slots > 0) {
            limit_adapters(call);
        }
        if (call.cache) {
            limit_cache(call);
        }
        if (call.states) {
            limit_states(call);
        }
        if (call.visible) {
            if (input_of(call, "visible", tensor_named(call, "visible")) !=
                static_cast<size_t>(StepInput::media_visible)) {
                throw py::value_error(name + ": visible: must be media_visible");
            }
            limits_.visible = true;
        }
        const RowFilter filter = flags ? filter_of(name, *flags, value) : RowFilter{};
        recorder_.record(call.kernels, call.tensors, call.written, call.integers, call.reals,
                         call.object, gathers, filter);
        for (const auto& tensor : tensors) {
            alive_.append(tensor);
        }
        alive_.append(object);
    }

    // Keeps the result of a call until the next run, like the output.
    void keep(const PlanTensor& tensor) {
        recorder_.keep(tensor);
        kept_.push_back(tensor);
    }

    // Builds the plan. `shared`: a plan whose arena the new plan may use, if it is large enough.
    // The two plans must not run at the same time.
    std::shared_ptr<StepPlan> finish(const PlanTensor& output, int threads,
                                     const StepPlan* shared) {
        if (!has_inputs_ || output.buffer == PlanTensor::external) {
            throw py::value_error("finish: needs inputs and an output that was recorded");
        }
        return std::make_shared<StepPlan>(
            StepPlan{Plan(recorder_, output, {rows_per_block(), threads},
                          shared == nullptr ? nullptr : shared->plan.arena()),
                     inputs_, output, limits_, false, present_, kept_});
    }

    const py::list& alive() const { return alive_; }

  private:
    static StepInput further_input(const std::string& name) {
        for (size_t i = num_base_inputs; i < num_step_inputs; ++i) {
            if (name == step_input_names[i]) {
                return static_cast<StepInput>(i);
            }
        }
        throw py::value_error("further: no step input is named " + name);
    }

    // Returns the rows of a block. Plans that tell prompt tokens apart have larger blocks.
    int64_t rows_per_block() const {
        const bool apart =
            std::find(present_.begin(), present_.end(), StepInput::is_prompt) != present_.end();
        return apart ? cpu::kPromptRowsPerBlock : cpu::rows_per_block(kernels_->isa());
    }

    RowFilter filter_of(const std::string& kernel, const PlanTensor& flags, int32_t value) {
        const auto input = static_cast<StepInput>(input_of(kernel, "flags", flags));
        if (input != StepInput::is_prompt && input != StepInput::sampled_is_prompt) {
            throw py::value_error(kernel + ": flags: must be is_prompt or sampled_is_prompt");
        }
        if (value != 0 && value != 1) {
            throw py::value_error(kernel + ": value: must be 0 or 1");
        }
        narrow(limits_.below[static_cast<size_t>(input)], {2});
        return {flags.buffer, value};
    }

    size_t input_of(const CheckedCall& call, const std::string& name,
                    const PlanTensor& tensor) const {
        return input_of(call.signature->kernel, name, tensor);
    }

    size_t input_of(const std::string& kernel, const std::string& name,
                    const PlanTensor& tensor) const {
        for (const StepInput input : present_) {
            const auto i = static_cast<size_t>(input);
            if (inputs_[i].buffer == tensor.buffer) {
                return i;
            }
        }
        throw py::value_error(kernel + ": " + name + ": must be an input of the recorder");
    }

    // Adds `bound` to the limits of a step input. Values that a kernel wrote below the limit need
    // no check.
    void limit(const CheckedCall& call, const ValueBound& bound) {
        const auto written = written_below_.find(call.tensors[bound.index].buffer);
        if (written != written_below_.end() && written->second == bound.limit) {
            return;
        }
        const size_t input =
            input_of(call, call.signature->tensors[bound.index].name, call.tensors[bound.index]);
        const bool signed_values = call.signature->tensors[bound.index].or_negative;
        narrow((signed_values ? limits_.negative_or_below : limits_.below)[input], bound.limit);
    }

    void limit_adapters(const CheckedCall& call) {
        const auto input = [&](const char* name) {
            return static_cast<StepInput>(input_of(call, name, tensor_named(call, name)));
        };
        const StepInput order = input("order"), starts = input("starts");
        const bool of_tokens = order == StepInput::adapter_order;
        if (input("slots") != StepInput::adapter_slots ||
            order != (of_tokens ? StepInput::adapter_order : StepInput::sampled_order) ||
            starts != (of_tokens ? StepInput::adapter_starts : StepInput::sampled_starts)) {
            throw py::value_error(
                "lora: order, starts, slots: must be inputs that belong together");
        }
        if (limits_.adapter_slots == 0 || call.adapter_slots < limits_.adapter_slots) {
            limits_.adapter_slots = call.adapter_slots;
        }
    }

    // Limits the contexts that an attention call reads to the blocks of its cache.
    void limit_cache(const CheckedCall& call) {
        const auto input = [&](const char* name) {
            return static_cast<StepInput>(input_of(call, name, tensor_named(call, name)));
        };
        const bool crosses = input("context_lens") == StepInput::cross_context_lens;
        if (input("query_starts") != StepInput::query_starts ||
            input("context_lens") !=
                (crosses ? StepInput::cross_context_lens : StepInput::context_lens) ||
            input("block_tables") !=
                (crosses ? StepInput::cross_block_tables : StepInput::block_tables)) {
            throw py::value_error(call.signature->kernel +
                                  ": query_starts, context_lens, "
                                  "block_tables: must be inputs that belong together");
        }
        narrow_cache(crosses ? limits_.cross_cache : limits_.cache, *call.cache);
    }

    // Limits the states of a step to those that a recurrent layer has.
    void limit_states(const CheckedCall& call) {
        constexpr std::array<StepInput, state_parameters.size()> expected{
            StepInput::query_starts, StepInput::context_lens,    StepInput::state_source,
            StepInput::state_base,   StepInput::state_target,    StepInput::state_keep,
            StepInput::state_save,   StepInput::state_save_after};
        for (size_t i = 0; i < expected.size(); ++i) {
            const std::string name = state_parameters[i];
            if (input_of(call, name, tensor_named(call, name)) !=
                static_cast<size_t>(expected[i])) {
                throw py::value_error(call.signature->kernel + ": " + name +
                                      ": must be the input of that name");
            }
        }
        narrow(limits_.states, *call.states);
    }

    static void narrow_cache(std::optional<CacheExtent>& limit, const CacheExtent& cache) {
        if (limit && limit->block_size != cache.block_size) {
            throw py::value_error("keys: all layers of a plan must have the same block size");
        }
        if (!limit || cache.blocks < limit->blocks) {
            limit = cache;
        }
    }

    std::shared_ptr<KernelSet> kernels_;
    Recorder recorder_;
    PerInput<PlanTensor> inputs_{};
    std::vector<StepInput> present_;
    std::vector<PlanTensor> kept_;
    bool has_inputs_ = false;
    InputLimits limits_;
    std::map<int32_t, Extent> written_below_; // limit of the values, by buffer
    py::list alive_;
};

// A plan, its thread pool, and the Python objects that its calls use.
struct PyPlan {
    std::shared_ptr<StepPlan> step;
    std::shared_ptr<ThreadPool> pool;
    py::list alive;
};

PerInput<TensorView> views_of(const StepPlan& plan, const std::vector<py::array>& arrays) {
    if (arrays.size() != plan.present.size()) {
        std::string names;
        for (size_t i = num_base_inputs; i < plan.present.size(); ++i) {
            names += (names.empty() ? "" : ", ") +
                     std::string(step_input_names[static_cast<size_t>(plan.present[i])]);
        }
        throw py::value_error("further: the plan was recorded with " +
                              (names.empty() ? "none" : names) + ", got " +
                              std::to_string(arrays.size() - num_base_inputs) + " arrays");
    }
    PerInput<TensorView> views;
    for (size_t place = 0; place < arrays.size(); ++place) {
        const auto i = static_cast<size_t>(plan.present[place]);
        const std::string name = step_input_names[i];
        views[i] = array_operand(arrays[place], name).view;
        const int rank = is_table(plan.present[place]) ? 2 : 1;
        if (views[i].dtype != DType::i32) {
            throw py::type_error(name + ": expected int32, got " + dtype_name(views[i].dtype));
        }
        if (views[i].rank != rank) {
            throw py::value_error(name + ": must have " + std::to_string(rank) + " dimension(s)");
        }
    }
    return views;
}

// Returns a matrix in the memory of a plan, which the array keeps alive.
py::array array_of(const TensorView& view, const py::object& plan) {
    const auto item = static_cast<py::ssize_t>(size_of(view.dtype));
    return py::array(numpy_dtype(view.dtype), {view.shape[0], view.shape[1]},
                     {view.stride[0] * item, item}, view.data, plan);
}

py::array run_plan(const py::object& self, const py::array& tokens, const py::array& positions,
                   const py::array& slots, const py::array& query_starts,
                   const py::array& context_lens, const py::array& block_tables,
                   const py::array& sample_rows, const std::vector<py::array>& further) {
    const auto& plan = self.cast<const PyPlan&>();
    std::vector<py::array> inputs{tokens,       positions,    slots,      query_starts,
                                  context_lens, block_tables, sample_rows};
    inputs.insert(inputs.end(), further.begin(), further.end());
    const auto views = views_of(*plan.step, inputs);
    const StepSize size = plan.step->measure(views);
    TensorView output;
    {
        const py::gil_scoped_release release;
        auto lease = plan.pool->acquire(plan.step->plan.workspace_bytes());
        plan.step->run(lease, size, views);
        output = plan.step->plan.view(plan.step->output);
    }
    return array_of(output, self);
}

// Returns the memory of a tensor of the last run that the recorder was told to keep.
py::array kept_tensor(const py::object& self, size_t index) {
    const StepPlan& step = *self.cast<const PyPlan&>().step;
    if (index >= step.kept.size()) {
        throw py::index_error("kept: the plan keeps " + std::to_string(step.kept.size()) +
                              " tensors");
    }
    return array_of(step.plan.view(step.kept[index]), self);
}

// Returns (seconds, calls) by kernel name.
std::map<std::string, std::pair<double, int64_t>> profile_of(const PyPlan& held) {
    std::map<std::string, std::pair<double, int64_t>> by_kernel;
    const Plan& plan = held.step->plan;
    for (size_t i = 0; i < plan.steps().size(); ++i) {
        auto& [seconds, calls] = by_kernel[plan.steps()[i].kernels.name()];
        seconds += plan.seconds()[i];
        calls += plan.timed_runs();
    }
    return by_kernel;
}

} // namespace

void bind_plan(py::module_& module) {
    py::class_<PlanTensor>(module, "PlanTensor")
        .def_property_readonly("shape",
                               [](const PlanTensor& tensor) {
                                   py::tuple shape(static_cast<size_t>(tensor.view.rank));
                                   for (size_t i = 0; i < shape.size(); ++i) {
                                       shape[i] = tensor.view.shape[i];
                                   }
                                   return shape;
                               })
        .def_property_readonly(
            "dtype", [](const PlanTensor& tensor) { return dtype_name(tensor.view.dtype); });
    py::class_<PyRecorder>(module, "Recorder")
        .def(py::init<std::shared_ptr<KernelSet>, int64_t, int64_t, int64_t>(), py::arg("kernels"),
             py::arg("max_tokens"), py::arg("max_rows"), py::arg("max_samples"))
        .def("inputs", &PyRecorder::inputs, py::arg("max_blocks"),
             py::arg("further") = std::vector<std::string>{})
        .def("empty", &PyRecorder::empty, py::arg("like"), py::arg("columns"),
             py::arg("dtype") = "float32")
        .def("between", &PyRecorder::between, py::arg("starts"), py::arg("columns"))
        .def("scratch", &PyRecorder::scratch, py::arg("extent"), py::arg("dtype") = "float32")
        .def("call", &PyRecorder::call, py::arg("kernel"), py::arg("tensors"),
             py::arg("integers") = std::vector<int64_t>{}, py::arg("reals") = std::vector<float>{},
             py::arg("object") = py::none(), py::arg("flags") = py::none(), py::arg("value") = 0)
        .def("keep", &PyRecorder::keep, py::arg("tensor"))
        .def(
            "finish",
            [](PyRecorder& recorder, std::shared_ptr<ThreadPool> pool, const PlanTensor& output,
               const std::optional<PyPlan>& shared) {
                const StepPlan* other = shared ? shared->step.get() : nullptr;
                auto step = recorder.finish(output, pool->threads(), other);
                return PyPlan{std::move(step), std::move(pool), recorder.alive()};
            },
            py::arg("pool"), py::arg("output"), py::arg("shared") = py::none());
    py::class_<PyPlan>(module, "Plan")
        .def("run", &run_plan, py::arg("tokens"), py::arg("positions"), py::arg("slots"),
             py::arg("query_starts"), py::arg("context_lens"), py::arg("block_tables"),
             py::arg("sample_rows"), py::arg("further") = std::vector<py::array>{})
        .def("kept", &kept_tensor, py::arg("index"))
        .def("profile", &profile_of)
        .def_property(
            "profiling", [](const PyPlan& plan) { return plan.step->profiling; },
            [](PyPlan& plan, bool value) { plan.step->profiling = value; })
        .def_property_readonly("arena_bytes",
                               [](const PyPlan& plan) { return plan.step->plan.arena_bytes(); })
        .def_property_readonly("num_steps",
                               [](const PyPlan& plan) { return plan.step->plan.steps().size(); });
}

} // namespace penstock::bind
