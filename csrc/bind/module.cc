#include "bind/bindings.h"

PYBIND11_MODULE(_native, module) {
    module.doc() = "Kernels, plans and the thread pool of the CPU.";
    penstock::bind::bind_pool(module);
    penstock::bind::bind_kernels(module);
    penstock::bind::bind_weights(module);
    penstock::bind::bind_experts(module);
    penstock::bind::bind_adapters(module);
    penstock::bind::bind_encode(module);
    penstock::bind::bind_plan(module);
    penstock::bind::bind_attention(module);
    penstock::bind::bind_sampling_state(module);
}
