#include "bind/call/call.h"

#include <algorithm>

#include "bind/call/call_kernels.h"
#include "bind/call/operand.h"
#include "bind/packed_experts.h"
#include "cpu/lora/pack_adapter.h"
#include "plan/aligned_buffer.h"

namespace penstock::bind {
namespace {

std::string where_of(const Signature& signature, const Parameter& parameter) {
    return signature.kernel + ": " + parameter.name;
}

std::string expected_types(DTypes dtypes) {
    std::string names;
    for (uint32_t i = 0; i < 32; ++i) {
        if ((dtypes >> i & 1U) != 0) {
            names += (names.empty() ? "" : " or ") + std::string(dtype_name(static_cast<DType>(i)));
        }
    }
    return names;
}

PlanTensor operand_of(const py::handle& given, const Parameter& parameter,
                      const std::string& where) {
    PlanTensor tensor;
    if (py::isinstance<PlanTensor>(given)) {
        tensor = given.cast<PlanTensor>();
    } else if (py::isinstance<py::array>(given)) {
        const auto array = py::reinterpret_borrow<py::array>(given);
        tensor = array_operand(array, where);
        if (parameter.access != Access::read && !array.writeable()) {
            throw py::value_error(where + ": is read-only, and the kernel writes it");
        }
    } else {
        throw py::type_error(where + ": expected an array, got " +
                             std::string(py::str(py::type::of(given).attr("__name__"))));
    }
    if ((parameter.dtypes & one_of(tensor.view.dtype)) == 0) {
        throw py::type_error(where + ": expected " + expected_types(parameter.dtypes) + ", got " +
                             dtype_name(tensor.view.dtype));
    }
    if (tensor.view.rank != static_cast<int>(parameter.extents.size())) {
        throw py::value_error(where + ": expected " + std::to_string(parameter.extents.size()) +
                              " dimensions, got " + std::to_string(tensor.view.rank));
    }
    // uint8 tensors hold quantized units, which kernels load by whole cache lines: they must be
    // aligned, unless they are empty.
    const auto columns = tensor.view.shape[static_cast<size_t>(tensor.view.rank - 1)];
    if (tensor.view.dtype == DType::u8 && columns > 0 &&
        reinterpret_cast<uintptr_t>(tensor.view.data) % alignment_bytes != 0) {
        throw py::value_error(where + ": must start on a multiple of 64 bytes");
    }
    return tensor;
}

Extent extent_of(const PlanTensor& tensor, size_t dimension) {
    return {tensor.view.shape[dimension], dimension == 0 ? tensor.axis : Axis::fixed};
}

void check_extents(const CheckedCall& call, Symbols& symbols) {
    const auto& parameters = call.signature->tensors;
    for (const bool names_only : {true, false}) {
        for (size_t i = 0; i < parameters.size(); ++i) {
            for (size_t d = 0; d < parameters[i].extents.size(); ++d) {
                const std::string& expression = parameters[i].extents[d];
                if (Symbols::is_name(expression) != names_only) {
                    continue;
                }
                const Extent actual = extent_of(call.tensors[i], d);
                const auto expected = symbols.evaluate(expression);
                if (!expected && names_only) {
                    symbols.set(expression, actual);
                } else if (expected != actual) {
                    const bool same = expected && expected->value == actual.value;
                    throw py::value_error(
                        where_of(*call.signature, parameters[i]) + ": dimension " +
                        std::to_string(d) + " is " + std::to_string(actual.value) + ", expected " +
                        expression + " = " + std::to_string(expected ? expected->value : -1) +
                        (same ? ", with the same axis (fixed, tokens, rows or samples)" : ""));
                }
            }
        }
    }
}

// Returns the adapter table of `given.object`. Sets in `symbols` the extents of the linear layer
// whose index is the first integer of the call.
const void* check_adapters(const Signature& signature, const CallArguments& given,
                           Symbols& symbols) {
    if (!py::isinstance<cpu::AdapterSlots>(given.object)) {
        throw py::type_error(signature.kernel + ": object: expected AdapterSlots");
    }
    const cpu::AdapterTable& table = given.object.cast<const cpu::AdapterSlots&>().table();
    const int64_t linear = given.integers.at(0);
    if (linear < 0 || linear >= table.num_linears) {
        throw py::value_error(signature.kernel + ": linear: must be below " +
                              std::to_string(table.num_linears));
    }
    symbols.set("C", {table.linears[linear].depth});
    symbols.set("N", {table.linears[linear].rows});
    symbols.set("inner_columns", {cpu::inner_columns(table, linear)});
    return &table;
}

void check_isa(const KernelSet& kernels, const Signature& signature, cpu::Isa packed_for) {
    if (packed_for != kernels.isa()) {
        throw py::value_error(signature.kernel + ": object: was packed for ISA " +
                              std::string(cpu::isa_name(packed_for)) + ", not " +
                              std::string(cpu::isa_name(kernels.isa())));
    }
}

const void* check_experts(const KernelSet& kernels, const Signature& signature,
                          const py::object& object, Symbols& symbols) {
    if (!py::isinstance<PackedExperts>(object)) {
        throw py::type_error(signature.kernel + ": object: expected PackedExperts");
    }
    const auto& packed = object.cast<const PackedExperts&>();
    check_isa(kernels, signature, packed.isa());
    const cpu::ExpertWeights& packed_tiles = packed.packed_tiles();
    symbols.set("E", {packed_tiles.count});
    symbols.set("F", {packed_tiles.down.packed_tiles.depth});
    symbols.set("W", {packed_tiles.down.packed_tiles.rows});
    symbols.set("row_bytes", {packed.row_bytes()});
    symbols.set("inner_bytes", {packed.inner_bytes()});
    return &packed_tiles;
}

const void* check_object(const KernelSet& kernels, const Signature& signature,
                         const CallArguments& given, Symbols& symbols) {
    const py::object& object = given.object;
    if (signature.object == ObjectKind::none) {
        if (!object.is_none()) {
            throw py::type_error(signature.kernel + ": takes no object");
        }
        return nullptr;
    }
    if (signature.object == ObjectKind::adapter_slots) {
        return check_adapters(signature, given, symbols);
    }
    if (signature.object == ObjectKind::packed_experts) {
        return check_experts(kernels, signature, object, symbols);
    }
    if (!py::isinstance<PackedWeights>(object)) {
        throw py::type_error(signature.kernel + ": object: expected PackedLinear");
    }
    const auto& packed = object.cast<const PackedWeights&>();
    check_isa(kernels, signature, packed.isa);
    if (signature.object == ObjectKind::packed_rows && packed.linear.use() != cpu::Use::rows) {
        throw py::value_error(signature.kernel +
                              ": object: was packed for products, not for gathering rows");
    }
    const cpu::LinearWeights& packed_tiles = *packed.linear.packed_tiles();
    symbols.set("C", {packed_tiles.depth});
    symbols.set("N", {packed_tiles.rows});
    symbols.set("V", {packed_tiles.rows});
    symbols.set("row_bytes", {cpu::quantized_row_bytes(packed_tiles.depth)});
    symbols.set("rounded_bytes", {packed_tiles.rounded_row_bytes});
    symbols.set("bf16_bytes", {cpu::bf16_row_bytes(packed_tiles.depth)});
    symbols.set("parts", {packed_tiles.num_parts});
    return &packed_tiles;
}

void check_count(const Signature& signature, const char* what, size_t given, size_t expected) {
    if (given != expected) {
        throw py::value_error(signature.kernel + ": takes " + std::to_string(expected) + " " +
                              what + ", got " + std::to_string(given));
    }
}

// Returns the half-open byte range that an external tensor covers; empty for an arena tensor.
std::pair<uintptr_t, uintptr_t> memory_of(const PlanTensor& tensor) {
    const TensorView& view = tensor.view;
    int64_t last = 0;
    for (size_t d = 0; d < static_cast<size_t>(view.rank); ++d) {
        if (view.shape[d] == 0) {
            return {0, 0};
        }
        last += (view.shape[d] - 1) * view.stride[d];
    }
    const auto start = reinterpret_cast<uintptr_t>(view.data);
    return start == 0
               ? std::pair<uintptr_t, uintptr_t>{0, 0}
               : std::pair{start, start + static_cast<uintptr_t>(last + 1) * size_of(view.dtype)};
}

// Checks that no array that the call writes overlaps another array of the call. Arena tensors are
// not compared: windows of one arena buffer may interleave.
void check_overlap(const CheckedCall& call) {
    for (size_t i = 0; i < call.tensors.size(); ++i) {
        if (call.signature->tensors[i].access != Access::write) {
            continue;
        }
        const auto out = memory_of(call.tensors[i]);
        for (size_t j = 0; j < call.tensors.size(); ++j) {
            const auto other = memory_of(call.tensors[j]);
            if (i != j && out.first < other.second && other.first < out.second) {
                throw py::value_error(where_of(*call.signature, call.signature->tensors[i]) +
                                      ": overlaps " + call.signature->tensors[j].name);
            }
        }
    }
}

// Returns the sizes of the states that a call takes.
StateExtent states_of(const Symbols& symbols) {
    const auto value = [&](const char* name) { return symbols.evaluate(name).value().value; };
    const int64_t rows = value("rows"), ring = value("ring");
    if (const auto slots = symbols.evaluate("state_slots")) {
        return {rows, slots->value - rows, ring, -1};
    }
    return {rows, value("snapshots"), 0, ring - value("before")};
}

} // namespace

CheckedCall check_call(const KernelSet& kernels, const std::string& name,
                       const CallArguments& given) {
    CheckedCall call;
    const cpu::Isa isa = kernels.isa(cpu::family_of(name));
    find_kernel(isa, name);
    call.signature = signature_of(name);
    if (call.signature == nullptr) {
        throw py::key_error("kernel " + name + " has no signature");
    }
    const Signature& signature = *call.signature;
    check_count(signature, "tensors", py::len(given.tensors), signature.tensors.size());
    check_count(signature, "integers", given.integers.size(), signature.integers.size());
    check_count(signature, "reals", given.reals.size(), signature.reals.size());
    call.integers = given.integers;
    call.reals = given.reals;

    Symbols symbols;
    call.object = check_object(kernels, signature, given, symbols);
    for (size_t i = 0; i < signature.integers.size(); ++i) {
        symbols.set(signature.integers[i], {given.integers[i]});
    }
    for (size_t i = 0; i < signature.tensors.size(); ++i) {
        const Parameter& parameter = signature.tensors[i];
        call.tensors.push_back(
            operand_of(given.tensors[i], parameter, where_of(signature, parameter)));
        call.written |= static_cast<uint32_t>(parameter.access == Access::write) << i;
    }
    check_extents(call, symbols);
    if (signature.refusal != nullptr) {
        const std::string reason = signature.refusal(symbols, cpu::lanes(isa));
        if (!reason.empty()) {
            throw py::value_error(name + ": " + reason);
        }
    }
    check_overlap(call);
    call.kernels = kernels_of(kernels, call, name);
    for (size_t i = 0; i < signature.tensors.size(); ++i) {
        if (!signature.tensors[i].below.empty()) {
            call.bounds.push_back({i, symbols.evaluate(signature.tensors[i].below).value()});
        }
        if (!signature.tensors[i].runs_to.empty()) {
            call.runs.push_back({i, symbols.evaluate(signature.tensors[i].runs_to).value()});
        }
        if (signature.tensors[i].name == "order") {
            call.adapter_slots = static_cast<const cpu::AdapterTable*>(call.object)->capacity;
        }
        if (signature.tensors[i].name == "state_source") {
            call.states = states_of(symbols);
        }
        call.visible |= signature.tensors[i].name == "visible";
        if (signature.tensors[i].name == "block_tables") {
            call.cache = {symbols.evaluate("B").value().value, symbols.evaluate("P").value().value};
        }
    }
    return call;
}

const PlanTensor& tensor_named(const CheckedCall& call, const std::string& name) {
    const auto& parameters = call.signature->tensors;
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const Parameter& p) { return p.name == name; });
    return call.tensors.at(static_cast<size_t>(found - parameters.begin()));
}

} // namespace penstock::bind
