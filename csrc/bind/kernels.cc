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
    pool.acquire(call.kernel->workspace_bytes(arguments)).run(*call.kernel, arguments);
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
        .def(py::init<const std::string&>(), py::arg("level") = "auto")
        .def_property_readonly("level", &KernelSet::level_name)
        .def("call", &call_now, py::arg("pool"), py::arg("kernel"), py::arg("tensors"),
             py::arg("integers") = std::vector<int64_t>{}, py::arg("reals") = std::vector<float>{},
             py::arg("object") = py::none());
}

} // namespace penstock::bind
