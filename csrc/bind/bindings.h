// One function per part of the Python module `penstock._native`; each adds its classes and
// functions to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace penstock::bind {

void bind_pool(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_weights(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_attention(pybind11::module_& module);
void bind_sampling_state(pybind11::module_& module);
void bind_experts(pybind11::module_& module);
void bind_adapters(pybind11::module_& module);
void bind_encode(pybind11::module_& module);

} // namespace penstock::bind
