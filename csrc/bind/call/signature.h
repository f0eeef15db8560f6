// The arguments of each kernel: names, element types and extents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bind/call/extents.h"
#include "penstock/dtype.h"

namespace penstock::bind {

enum class Access : uint8_t { read, write, update };

// A set of element types.
using DTypes = uint32_t;
constexpr DTypes one_of(DType dtype) {
    return 1U << static_cast<uint32_t>(dtype);
}

struct Parameter {
    std::string name;
    Access access = Access::read;
    DTypes dtypes = 0;
    std::vector<std::string> extents; // expressions of extents.h, one per dimension
    std::string below;                // values of an integer tensor lie in 0..below - 1
    std::string runs_to;              // values ascend from 0 to this extent
};

// packed_rows: a packed_linear that rows may be gathered from.
enum class ObjectKind : uint8_t { none, packed_linear, packed_rows, adapter_slots, packed_experts };

using Refusal = std::string(const Symbols&, int lanes);

struct Signature {
    std::string kernel;
    std::string text; // see `signatures`
    std::vector<Parameter> tensors;
    std::vector<std::string> integers; // usable in extents
    std::vector<std::string> reals;
    ObjectKind object = ObjectKind::none;

    // Returns why a kernel whose vectors have `lanes` floats cannot compute these extents; an empty
    // string if it can. Null: it computes all.
    Refusal* refusal = nullptr;
};

// The signatures of all kernels. `text` lists the operands in the order of a call, separated by
// "; ": "x float32 [T, W]" for a tensor, after "write " or "update " unless it is only read, and
// before " below V" if its values lie in 0..V - 1 or " up to T" if they ascend from 0 to T;
// "integer window" and "real eps" for numbers. Python compares them with the signatures of the ops
// (kernels/signature.py).
const std::vector<Signature>& signatures();

// The signature of that kernel, or null.
const Signature* signature_of(std::string_view kernel);

} // namespace penstock::bind
