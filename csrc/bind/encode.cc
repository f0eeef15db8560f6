// Python binding of the encoder of GGML's block types.
#include "cpu/encode/encode.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "bind/bindings.h"
#include "plan/thread_pool.h"

namespace penstock::bind {

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style>;

constexpr int64_t TASK_NUMBERS = 1 << 14;

const cpu::encode::BlockType& type_named(const std::string& name) {
    const auto* type = cpu::encode::block_type_named(name);
    if (type == nullptr) {
        throw py::value_error("type: cannot encode " + name);
    }
    return *type;
}

py::array_t<uint8_t> encode(ThreadPool& pool, const std::string& name, const Floats& weights,
                            const std::optional<Floats>& importance) {
    const auto& type = type_named(name);
    if (weights.ndim() != 2 || weights.shape(1) % type.block != 0) {
        throw py::value_error("weights: must have 2 dimensions, and columns in multiples of " +
                              std::to_string(type.block));
    }
    const int64_t rows = weights.shape(0), columns = weights.shape(1);
    if (importance && (importance->ndim() != 1 || importance->shape(0) != columns)) {
        throw py::value_error("importance: must be [" + std::to_string(columns) + "]");
    }
    const int64_t blocks = rows * (columns / type.block);
    py::array_t<uint8_t> out({rows, columns / type.block * type.size_bytes});
    const float* source = weights.data();
    const float* factors = importance ? importance->data() : nullptr;
    uint8_t* target = out.mutable_data();
    // Whole units, so that the last one of a task needs no padding.
    const int64_t step = std::max<int64_t>(TASK_NUMBERS / (type.block * type.unit), 1) * type.unit;
    const py::gil_scoped_release release;
    pool.parallel_for((blocks + step - 1) / step, [&](int64_t task) {
        const int64_t begin = task * step, end = std::min(begin + step, blocks);
        cpu::encode::encode_blocks(type, source, factors, columns, begin, end,
                                   target + begin * type.size_bytes);
    });
    return out;
}

} // namespace

void bind_encode(py::module_& module) {
    module.def("encode_blocks", &encode, py::arg("pool"), py::arg("type"), py::arg("weights"),
               py::arg("importance") = py::none());
    std::vector<std::string> names;
    for (const auto& type : cpu::encode::block_types()) {
        names.emplace_back(type.name);
    }
    module.attr("ENCODED_TYPES") = py::tuple(py::cast(names));
}

} // namespace penstock::bind
