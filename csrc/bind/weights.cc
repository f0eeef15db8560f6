// Python bindings of MatrixSource and PackedLinear.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bind/bindings.h"
#include "bind/call/operand.h"
#include "bind/kernel_set.h"
#include "plan/thread_pool.h"

namespace penstock::bind {
namespace {

// A MatrixSource, and the numpy arrays whose memory it borrows.
struct HeldSource {
    cpu::MatrixSource source;
    std::vector<py::array> arrays;

    // Returns a view of a C-contiguous [rows, columns] array whose element type is one of `dtypes`.
    TensorView take(const py::array& array, const char* name, int64_t rows, int64_t columns,
                    std::initializer_list<DType> dtypes) {
        const TensorView view = array_operand(array, name).view;
        if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
            throw py::type_error(std::string(name) + ": cannot be " + dtype_name(view.dtype));
        }
        if (view.rank != 2 || view.shape[0] != rows || view.shape[1] != columns) {
            throw py::value_error(std::string(name) + ": must be [" + std::to_string(rows) + ", " +
                                  std::to_string(columns) + "]");
        }
        if ((array.flags() & py::array::c_style) == 0) {
            throw py::value_error(std::string(name) + ": must be C-contiguous");
        }
        arrays.push_back(array);
        return view;
    }
};

int64_t columns_of(const py::array& array, const char* name) {
    if (array.ndim() != 2) {
        throw py::value_error(std::string(name) + ": must have 2 dimensions");
    }
    return array.shape(1);
}

HeldSource dense_source(const py::array& data, const std::string& dtype) {
    HeldSource held;
    cpu::MatrixSource& source = held.source;
    source.depth = columns_of(data, "data");
    source.rows = data.shape(0);
    source.dense_dtype = dtype_named(dtype);
    source.dense = held.take(data, "data", source.rows, source.depth, {source.dense_dtype}).data;
    return held;
}

void take_super_scales(HeldSource& held, const std::optional<py::array>& super_scale,
                       const std::optional<py::array>& super_minimum) {
    cpu::MatrixSource& source = held.source;
    const int64_t columns = (source.depth + 255) / 256;
    const auto take = [&](const py::array& array, const char* name) {
        return static_cast<const uint16_t*>(
            held.take(array, name, source.rows, columns, {DType::f16}).data);
    };
    if (!super_scale) {
        throw py::value_error("super_scale: required if scale is an integer");
    }
    source.super_scale = take(*super_scale, "super_scale");
    if (source.minimum == nullptr) {
        return;
    }
    if (!super_minimum) {
        throw py::value_error("super_minimum: required if minimum is an integer");
    }
    source.super_minimum = take(*super_minimum, "super_minimum");
}

HeldSource affine_source(int bits, int group, const py::array& q, const py::array& scale,
                         const std::optional<py::array>& minimum, int zero_point,
                         const std::optional<py::array>& super_scale,
                         const std::optional<py::array>& super_minimum) {
    if (bits != 4 && bits != 8) {
        throw py::value_error("bits: must be 4 or 8, got " + std::to_string(bits));
    }
    if (group != 16 && group != 32) {
        throw py::value_error("group: must be 16 or 32, got " + std::to_string(group));
    }
    if (zero_point < 0 || zero_point > 255) {
        throw py::value_error("zero_point: must be in 0..255, got " + std::to_string(zero_point));
    }
    HeldSource held;
    cpu::MatrixSource& source = held.source;
    const int64_t bytes = columns_of(q, "q");
    source.rows = q.shape(0);
    source.depth = bits == 4 ? 2 * bytes : bytes;
    source.bits = bits;
    source.group = group;
    source.zero_point = zero_point;
    if (source.depth % group != 0) {
        throw py::value_error("q: rows must be a multiple of the group size, " +
                              std::to_string(group));
    }
    const int64_t groups = source.depth / group;
    source.q = static_cast<const uint8_t*>(held.take(q, "q", source.rows, bytes, {DType::u8}).data);
    const TensorView scales = held.take(scale, "scale", source.rows, groups,
                                        {DType::f16, DType::f32, DType::i8, DType::u8});
    source.scale = scales.data;
    source.scale_dtype = scales.dtype;
    const bool two_level = scales.dtype == DType::i8 || scales.dtype == DType::u8;
    if (minimum) {
        const TensorView minima =
            two_level
                ? held.take(*minimum, "minimum", source.rows, groups, {DType::i8, DType::u8})
                : held.take(*minimum, "minimum", source.rows, groups, {DType::f16, DType::f32});
        source.minimum = minima.data;
        source.minimum_dtype = minima.dtype;
    }
    if (two_level) {
        take_super_scales(held, super_scale, super_minimum);
    } else if (super_scale || super_minimum) {
        throw py::value_error("super_scale: only allowed if scale is an integer");
    }
    return held;
}

cpu::Use use_named(const std::string& name) {
    if (name == "products")
        return cpu::Use::products;
    if (name == "rounded_products")
        return cpu::Use::rounded_products;
    if (name == "rows")
        return cpu::Use::rows;
    throw py::value_error("use: must be products, rounded_products or rows, got " + name);
}

std::shared_ptr<PackedWeights> pack(const KernelSet& kernels, ThreadPool& pool,
                                    const std::vector<HeldSource>& parts,
                                    const std::optional<py::array>& bias,
                                    const std::string& use_name) {
    const cpu::Use use = use_named(use_name);
    std::vector<cpu::MatrixSource> sources;
    int64_t rows = 0;
    for (const HeldSource& part : parts) {
        sources.push_back(part.source);
        rows += part.source.rows;
    }
    if (const std::string reason = cpu::refusal(sources); !reason.empty()) {
        throw py::value_error(reason);
    }
    const float* bias_data = nullptr;
    if (bias) {
        const TensorView view = array_operand(*bias, "bias").view;
        if (view.dtype != DType::f32) {
            throw py::type_error("bias: expected float32");
        }
        if (view.rank != 1 || view.shape[0] != rows || (rows > 1 && view.stride[0] != 1)) {
            throw py::value_error("bias: must be [" + std::to_string(rows) + "], contiguous");
        }
        bias_data = static_cast<const float*>(view.data);
    }
    const py::gil_scoped_release release;
    auto packed = std::make_shared<PackedWeights>(sources, bias_data, kernels.isa(), use);
    constexpr int64_t packed_tiles_per_task = 4;
    const int64_t packed_tiles = packed->linear.num_packed_tiles();
    pool.parallel_for(
        (packed_tiles + packed_tiles_per_task - 1) / packed_tiles_per_task, [&](int64_t task) {
            const int64_t first = task * packed_tiles_per_task;
            packed->linear.pack_tiles(first, std::min(first + packed_tiles_per_task, packed_tiles));
        });
    return packed;
}

} // namespace

void bind_weights(py::module_& module) {
    py::class_<HeldSource>(module, "MatrixSource")
        .def_static("dense", &dense_source, py::arg("data"), py::arg("dtype"))
        .def_static("affine", &affine_source, py::arg("bits"), py::arg("group"), py::arg("q"),
                    py::arg("scale"), py::arg("minimum") = py::none(), py::arg("zero_point") = 0,
                    py::arg("super_scale") = py::none(), py::arg("super_minimum") = py::none());
    py::class_<PackedWeights, std::shared_ptr<PackedWeights>>(module, "PackedLinear")
        .def(py::init(&pack), py::arg("kernels"), py::arg("pool"), py::arg("parts"),
             py::arg("bias") = py::none(), py::arg("use") = "products")
        .def_property_readonly("shape",
                               [](const PackedWeights& packed) {
                                   return py::make_tuple(packed.linear.packed_tiles()->rows,
                                                         packed.linear.packed_tiles()->depth);
                               })
        .def_property_readonly("quantized_row_bytes",
                               [](const PackedWeights& packed) {
                                   return cpu::quantized_row_bytes(
                                       packed.linear.packed_tiles()->depth);
                               })
        .def_property_readonly("rounded_row_bytes",
                               [](const PackedWeights& packed) {
                                   return packed.linear.packed_tiles()->rounded_row_bytes;
                               })
        .def_property_readonly("bf16_row_bytes",
                               [](const PackedWeights& packed) {
                                   return cpu::bf16_row_bytes(packed.linear.packed_tiles()->depth);
                               })
        .def_property_readonly(
            "has_affine", [](const PackedWeights& packed) { return packed.linear.has_affine(); })
        .def_property_readonly(
            "has_dense", [](const PackedWeights& packed) { return packed.linear.has_dense(); })
        .def_property_readonly(
            "size_bytes", [](const PackedWeights& packed) { return packed.linear.size_bytes(); });
}

} // namespace penstock::bind
