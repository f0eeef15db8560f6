// Python bindings of AdapterSlots and PackedAdapter.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>

#include "bind/bindings.h"
#include "bind/call/operand.h"
#include "cpu/lora/pack_adapter.h"

namespace penstock::bind {
namespace {

constexpr int64_t slot_limit = 1 << 16;
constexpr int64_t rank_limit = 1 << 14;
constexpr int64_t extent_limit = int64_t{1} << 24;

using Factors = std::optional<std::pair<py::array, py::array>>;

cpu::AdapterDType adapter_dtype_named(const std::string& name) {
    if (name == "f32" || name == "f16" || name == "i8") {
        return name == "f32"   ? cpu::AdapterDType::f32
               : name == "f16" ? cpu::AdapterDType::f16
                               : cpu::AdapterDType::i8;
    }
    throw py::value_error("dtype: must be f32, f16 or i8, got " + name);
}

std::shared_ptr<cpu::AdapterSlots>
make_slots(int64_t capacity, int64_t max_rank, const std::string& dtype,
           const std::vector<std::pair<int64_t, std::vector<int64_t>>>& linears) {
    if (capacity < 1 || capacity > slot_limit || max_rank < 1 || max_rank > rank_limit) {
        throw py::value_error("capacity, max_rank: must be in 1..2^16 and 1..2^14");
    }
    std::vector<cpu::AdapterSlots::Shape> shapes;
    for (const auto& [depth, rows] : linears) {
        bool fits = depth >= 1 && depth <= extent_limit && !rows.empty();
        for (const int64_t count : rows) {
            fits = fits && count >= 1 && count <= extent_limit;
        }
        if (!fits) {
            throw py::value_error("linears: extents must be in 1..2^24");
        }
        shapes.push_back({depth, rows});
    }
    return std::make_shared<cpu::AdapterSlots>(capacity, max_rank, adapter_dtype_named(dtype),
                                               shapes);
}

const float* matrix(const py::array& array, const char* name, int64_t rows, int64_t columns) {
    const TensorView view = array_operand(array, name).view;
    if (view.dtype != DType::f32 || view.rank != 2 || view.shape[0] != rows ||
        view.shape[1] != columns || (array.flags() & py::array::c_style) == 0) {
        throw py::value_error(std::string(name) + ": must be float32 [" + std::to_string(rows) +
                              ", " + std::to_string(columns) + "], C-contiguous");
    }
    return static_cast<const float*>(view.data);
}

std::shared_ptr<const cpu::PackedAdapter> pack(const cpu::AdapterSlots& slots,
                                               const std::vector<Factors>& factors) {
    const cpu::AdapterTable& table = slots.table();
    if (static_cast<int64_t>(factors.size()) != table.num_slices) {
        throw py::value_error("factors: needs " + std::to_string(table.num_slices) + ", got " +
                              std::to_string(factors.size()));
    }
    std::vector<cpu::AdapterFactors> borrowed;
    for (size_t s = 0; s < factors.size(); ++s) {
        cpu::AdapterFactors& one = borrowed.emplace_back();
        if (!factors[s]) {
            continue;
        }
        const auto& [a, b] = *factors[s];
        one.rank = a.ndim() == 2 ? a.shape(0) : 0;
        if (one.rank < 1 || one.rank > table.max_rank) {
            throw py::value_error("a: its rank must be in 1.." + std::to_string(table.max_rank));
        }
        one.a = matrix(a, "a", one.rank, slots.depth_of(static_cast<int64_t>(s)));
        one.b = matrix(b, "b", table.shapes[s].rows, one.rank);
    }
    const py::gil_scoped_release release;
    return std::make_shared<const cpu::PackedAdapter>(slots, borrowed);
}

void check_slot(const cpu::AdapterSlots& slots, int64_t slot) {
    if (slot < 0 || slot >= slots.table().capacity) {
        throw py::value_error("slot: must be in 0.." + std::to_string(slots.table().capacity - 1));
    }
}

void install(cpu::AdapterSlots& slots, int64_t slot,
             const std::shared_ptr<cpu::PackedAdapter>& adapter) {
    check_slot(slots, slot);
    if (!adapter->fits(slots)) {
        throw py::value_error("adapter: was packed for slots of other shapes");
    }
    slots.install(slot, adapter);
}

void clear(cpu::AdapterSlots& slots, int64_t slot) {
    check_slot(slots, slot);
    slots.clear(slot);
}

int64_t inner_columns(const cpu::AdapterSlots& slots, int64_t linear) {
    if (linear < 0 || linear >= slots.table().num_linears) {
        throw py::value_error("linear: must be below " + std::to_string(slots.table().num_linears));
    }
    return cpu::inner_columns(slots.table(), linear);
}

} // namespace

void bind_adapters(py::module_& module) {
    py::class_<cpu::PackedAdapter, std::shared_ptr<cpu::PackedAdapter>>(module, "PackedAdapter")
        .def_property_readonly("size_bytes", &cpu::PackedAdapter::size_bytes);
    py::class_<cpu::AdapterSlots, std::shared_ptr<cpu::AdapterSlots>>(module, "AdapterSlots")
        .def(py::init(&make_slots), py::arg("capacity"), py::arg("max_rank"), py::arg("dtype"),
             py::arg("linears"))
        .def("pack", &pack, py::arg("factors"))
        .def("install", &install, py::arg("slot"), py::arg("adapter"))
        .def("clear", &clear, py::arg("slot"))
        .def("inner_columns", &inner_columns, py::arg("linear"));
}

} // namespace penstock::bind
