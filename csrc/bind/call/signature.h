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

// A set of element types, one bit per type.
using DTypes = uint32_t;
constexpr DTypes one_of(DType dtype) {
    return 1U << static_cast<uint32_t>(dtype);
}

struct Parameter {
    std::string name;
    Access access = Access::read;
    DTypes dtypes = 0;
    std::vector<std::string> extents; // expressions of extents.h, one per dimension
    std::string below;                // if set: the values of an integer tensor are in 0..below - 1
    bool or_negative = false;         // with `below`: negative values are allowed too
    std::string runs_to;              // if set: the values ascend from 0 to this extent
};

// The type of a kernel's `object` argument. packed_rows: a packed_linear from which rows may be
// gathered.
enum class ObjectKind : uint8_t { none, packed_linear, packed_rows, adapter_slots, packed_experts };

using Refusal = std::string(const Symbols&, int lanes);

struct Signature {
    std::string kernel;
    std::string text; // the form that `signatures` documents
    std::vector<Parameter> tensors;
    std::vector<std::string> integers; // names of the integers, usable in extents
    std::vector<std::string> reals;
    ObjectKind object = ObjectKind::none;

    // Returns why a kernel whose vectors have `lanes` floats cannot compute these extents, or an
    // empty string if it can. Null if the kernel can compute all extents.
    Refusal* refusal = nullptr;
};

// Returns the signatures of all kernels. `text` lists the operands in the order of a call,
// separated by "; ". A tensor is "x float32 [T, W]", with "write " or "update " in front unless it
// is only read, and with " below V" after it if its values are in 0..V - 1 (" below V or negative"
// if they may also be negative), or " up to T" if they ascend from 0 to T. A number is "integer
// window" or "real eps". Python compares the texts with the signatures of the ops
// (kernels/signature.py).
const std::vector<Signature>& signatures();

// Returns the signature of the kernel with this name, or null.
const Signature* signature_of(std::string_view kernel);

} // namespace penstock::bind
