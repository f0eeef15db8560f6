// Python binding of KernelSet, which also runs single kernel calls.
#include <pybind11/stl.h>

#include <map>
#include <memory>

#include "bind/bindings.h"
#include "bind/call/call.h"
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
        const auto check = parameter.or_negative ? check_negative_or_below : check_below;
        check(call.tensors[bound.index].view, bound.limit.value,
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
        const ChunkViews chunks{tensor_named(call, "query_starts").view,
                                tensor_named(call, "context_lens").view,
                                tensor_named(call, "block_tables").view};
        check_chunks(chunks, call.tensors[0].view.shape[0], *call.cache);
        if (call.visible) {
            check_visible(tensor_named(call, "visible").view, chunks,
                          call.signature->kernel + ": visible");
        }
    }
    if (call.states) {
        std::array<TensorView, state_parameters.size()> views;
        for (size_t i = 0; i < views.size(); ++i) {
            views[i] = tensor_named(call, state_parameters[i]).view;
        }
        StateCheck{}(
            {views[0], views[1], views[2], views[3], views[4], views[5], views[6], views[7]},
            call.tensors[0].view.shape[0], *call.states, call.signature->kernel + ": ");
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

// Returns whether the kernels of `isa` give the same bits as the family's own ISA.
bool serves(const KernelSet& kernels, const std::string& family_name, const std::string& isa_name,
            const py::object& object, bool shared_halves) {
    const auto family = cpu::family_named(family_name);
    if (!family) {
        throw py::value_error("unknown kernel family: " + family_name);
    }
    const cpu::Isa own = kernels.isa(*family), isa = resolve_isa(isa_name);
    if (*family == cpu::Family::attention) {
        return cpu::attention_bit_exact(shared_halves, own, isa);
    }
    if (*family == cpu::Family::other) {
        return cpu::other_bit_exact(own, isa);
    }
    if (*family == cpu::Family::prompts) {
        return cpu::prompts_bit_exact(own, isa);
    }
    const cpu::LinearWeights& packed_tiles =
        *object.cast<const PackedWeights&>().linear.packed_tiles();
    return *family == cpu::Family::affine  ? cpu::affine_bit_exact(packed_tiles, own, isa)
           : *family == cpu::Family::dense ? cpu::dense_bit_exact(packed_tiles, own, isa)
                                           : cpu::affine_bit_exact(packed_tiles, own, isa) &&
                                                 cpu::dense_bit_exact(packed_tiles, own, isa);
}

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const cpu::Isa isa : cpu::kIsas) {
        if (cpu::missing_feature(isa).empty()) {
            names.emplace_back(cpu::isa_name(isa));
        }
    }
    return names;
}

std::map<std::string, std::string> signature_texts() {
    std::map<std::string, std::string> texts;
    for (const Signature& signature : signatures()) {
        texts.emplace(signature.kernel, signature.text);
    }
    return texts;
}

} // namespace

void bind_kernels(py::module_& module) {
    module.def("supported_isas", &supported_isas);
    module.def("signatures", &signature_texts,
               "Return the signature of each kernel as text; see csrc/bind/call/signature.h.");
    py::class_<KernelSet, std::shared_ptr<KernelSet>>(module, "KernelSet")
        .def(py::init<const std::string&, const std::string&, const std::string&,
                      const KernelSet::ByRows&, const std::string&>(),
             py::arg("isa") = "auto", py::arg("attention") = "", py::arg("other") = "",
             py::arg("by_rows") = KernelSet::ByRows{}, py::arg("prompts") = "")
        .def_property_readonly(
            "isa",
            [](const KernelSet& kernels) { return std::string(cpu::isa_name(kernels.isa())); })
        .def_property_readonly("prompts",
                               [](const KernelSet& kernels) {
                                   return kernels.prompts()
                                              ? std::string(cpu::isa_name(*kernels.prompts()))
                                              : std::string();
                               })
        .def("serves", &serves, py::arg("family"), py::arg("isa"), py::arg("object") = py::none(),
             py::arg("shared_halves") = false)
        .def("call", &call_now, py::arg("pool"), py::arg("kernel"), py::arg("tensors"),
             py::arg("integers") = std::vector<int64_t>{}, py::arg("reals") = std::vector<float>{},
             py::arg("object") = py::none());
}

} // namespace penstock::bind
