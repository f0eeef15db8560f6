// Python bindings of the sizes of partial results.
#include "bind/bindings.h"
#include "cpu/attention/attention_split.h"

namespace penstock::bind {

void bind_attention(pybind11::module_& module) {
    module.def("attention_partial_floats", &cpu::attention_partial_floats, pybind11::arg("heads"),
               pybind11::arg("kv_heads"), pybind11::arg("dim"), pybind11::arg("max_context"));
    module.def("latent_partial_floats", &cpu::latent_partial_floats, pybind11::arg("heads"),
               pybind11::arg("latent"), pybind11::arg("max_context"));
}

} // namespace penstock::bind
