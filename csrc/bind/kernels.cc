// KernelSet: the kernels of a level, called eagerly.
#include <pybind11/stl.h>

#include <memory>

#include "bind/bindings.h"
#include "bind/call.h"
#include "bind/kernel_set.h"
#include "plan/thread_pool.h"

namespace penstock::bind {
namespace {

void check_values(const CheckedCall& call) {
    for (const ValueBound& bound : call.bounds) {
        const Parameter& parameter = call.signature->tensors[bound.index];
        if (parameter.access == Access::write) {
            continue;
        }
        check_below(call.tensors[bound.index].view, bound.limit.value,
                    call.signature->kernel + ": " + parameter.name);
        if (parameter.name == "slots") {
            DistinctCheck{}(call.tensors[bound.index].view, call.signature->kernel + ": slots");
        }
    }
    for (const ValueBound& run : call.runs) {
        const Parameter& parameter = call.signature->tensors[run.index];
        check_starts(call.tensors[run.index].view, run.limit.value,
                     call.signature->kernel + ": " + parameter.name);
    }
    if (call.adapter_slots > 0) {
        DistinctCheck distinct;
        check_groups({tensor_named(call, "order").view, tensor_named(call, "starts").view,
                      tensor_named(call, "slots").view},
                     call.adapter_slots, distinct, call.signature->kernel + ": ");
    }
    if (call.cache) {
        check_chunks({tensor_named(call, "query_starts").view,
                      tensor_named(call, "context_lens").view,
                      tensor_named(call, "block_tables").view},
                     call.tensors[0].view.shape[0], *call.cache);
    }
}

void call_now(const KernelSet& kernels, ThreadPool& pool, const std::string& name,
              const py::sequence& tensors, const std::vector<int64_t>& integers,
              const std::vector<float>& reals, const py::object& object) {
    for (const auto& tensor : tensors) {
        if (py::isinstance<PlanTensor>(tensor)) {
            throw py::type_error(name + ": a PlanTensor can only be recorded");
        }
    }
    const CheckedCall call = check_call(kernels, name, {tensors, integers, reals, object});
    Arguments arguments;
    for (size_t i = 0; i < call.tensors.size(); ++i) {
        arguments.tensor[i] = call.tensors[i].view;
    }
    std::copy(call.integers.begin(), call.integers.end(), arguments.integer.begin());
    std::copy(call.reals.begin(), call.reals.end(), arguments.real.begin());
    arguments.object = call.object;
    check_values(call);
    const py::gil_scoped_release release;
    const Kernel& kernel = call.kernels.of(arguments);
    pool.acquire(kernel.workspace_bytes(arguments)).run(kernel, arguments);
}

// Whether the kernels of `level` may serve in place of the family's own.
bool serves(const KernelSet& kernels, const std::string& family_name, const std::string& level_name,
            const py::object& object, bool shared_halves) {
    const auto family = cpu::family_named(family_name);
    if (!family) {
        throw py::value_error("no such family of kernels: " + family_name);
    }
    const cpu::Level own = kernels.level(*family), level = resolve_level(level_name);
    if (*family == cpu::Family::attention) {
        return cpu::same_attention(shared_halves, own, level);
    }
    if (*family == cpu::Family::other) {
        return cpu::same_other(own, level);
    }
    const cpu::LinearPanels& panels = *object.cast<const PackedWeights&>().linear.panels();
    return *family == cpu::Family::affine ? cpu::same_affine(panels, own, level)
           : *family == cpu::Family::dense
               ? cpu::same_dense(panels, own, level)
               : cpu::same_affine(panels, own, level) && cpu::same_dense(panels, own, level);
}

std::vector<std::string> supported_levels() {
    std::vector<std::string> names;
    for (const cpu::Level level : cpu::kLevels) {
        if (cpu::missing_feature(level).empty()) {
            names.emplace_back(cpu::level_name(level));
        }
    }
    return names;
}

} // namespace

void bind_kernels(py::module_& module) {
    module.def("supported_levels", &supported_levels);
    py::class_<KernelSet, std::shared_ptr<KernelSet>>(module, "KernelSet")
        .def(py::init<const std::string&, const std::string&, const std::string&,
                      const KernelSet::ByRows&>(),
             py::arg("level") = "auto", py::arg("attention") = "", py::arg("other") = "",
             py::arg("by_rows") = KernelSet::ByRows{})
        .def_property_readonly(
            "level",
            [](const KernelSet& kernels) { return std::string(cpu::level_name(kernels.level())); })
        .def("serves", &serves, py::arg("family"), py::arg("level"), py::arg("object") = py::none(),
             py::arg("shared_halves") = false)
        .def("call", &call_now, py::arg("pool"), py::arg("kernel"), py::arg("tensors"),
             py::arg("integers") = std::vector<int64_t>{}, py::arg("reals") = std::vector<float>{},
             py::arg("object") = py::none());
}

} // namespace penstock::bind
