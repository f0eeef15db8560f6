// Kernel signatures: names, element types and extents of every kernel's arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bind/call/extents.h"
#include "penstock/dtype.h"

namespace penstock::bind {

enum class Access : uint8_t { read, write, update };

// A bit set of element types.
using DTypes = uint32_t;
constexpr DTypes one_of(DType dtype) {
    return 1U << static_cast<uint32_t>(dtype);
}

struct Parameter {
    std::string name;
    Access access = Access::read;
    DTypes dtypes = 0;
    std::vector<std::string> extents; // one expression per dimension; see extents.h
    std::string below;                // integer tensors: values are in 0..below - 1
    std::string runs_to = {};         // values ascend from 0 to this extent
};

// packed_rows: a packed_linear that supports gathering rows.
enum class ObjectKind : uint8_t { none, packed_linear, packed_rows, adapter_slots, packed_experts };

struct Signature {
    std::string kernel;
    std::vector<Parameter> tensors;
    std::vector<std::string> integers; // names that extents may use
    std::vector<std::string> reals;
    ObjectKind object = ObjectKind::none;

    // Returns why a kernel with vectors of `lanes` floats cannot take these extents, or an empty
    // string.
    std::string (*refusal)(const Symbols&, int lanes) = nullptr;
};

// The signature of a kernel, or null if it has none.
const Signature* signature_of(std::string_view kernel);

} // namespace penstock::bind
