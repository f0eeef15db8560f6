// Checks one kernel call from Python against the kernel's signature.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "bind/call/extents.h"
#include "bind/call/signature.h"
#include "bind/call/state_checks.h"
#include "bind/call/value_checks.h"
#include "bind/kernel_set.h"
#include "plan/recorder.h"

namespace penstock::bind {

namespace py = pybind11;

// A limit on the values of tensor `index`: each must be below `limit` (in `bounds`), or they must
// ascend from 0 to `limit` (in `runs`).
struct ValueBound {
    size_t index = 0;
    Extent limit;
};

struct CheckedCall {
    KernelChoice kernels;
    const Signature* signature = nullptr;
    std::vector<PlanTensor> tensors;
    std::vector<int64_t> integers;
    std::vector<float> reals;
    const void* object = nullptr;
    uint32_t written = 0; // bit i: the call writes tensor i
    std::vector<ValueBound> bounds;
    std::vector<ValueBound> runs;
    std::optional<CacheExtent> cache;  // set if the call takes the chunks of a step
    std::optional<StateExtent> states; // set if the call takes the states of a step
    bool visible = false;              // the call takes the tensor `visible`
    int64_t adapter_slots = 0;         // number of slots, if the call takes adapter groups
};

struct CallArguments {
    py::sequence tensors;
    std::vector<int64_t> integers;
    std::vector<float> reals;
    py::object object;
};

// Checks the arguments of a call to kernel `name`. Each tensor is a numpy array or a PlanTensor.
// Raises TypeError or ValueError naming the kernel and the argument, and KeyError for an unknown
// kernel. Does not read tensor values.
CheckedCall check_call(const KernelSet& kernels, const std::string& name,
                       const CallArguments& given);

// Returns the tensor of the parameter `name`, which the signature must have.
const PlanTensor& tensor_named(const CheckedCall& call, const std::string& name);

// The parameters of a call with states, in the order of StateViews.
constexpr std::array<const char*, 8> state_parameters{
    "query_starts", "context_lens", "state_source", "state_base",
    "state_target", "state_keep",   "state_save",   "state_save_after"};

} // namespace penstock::bind
