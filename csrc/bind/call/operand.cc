#include "bind/call/operand.h"

#include <array>
#include <utility>

namespace penstock::bind {
namespace {

struct DTypeEntry {
    DType dtype;
    const char* name;
    const char* numpy; // kind and item size in numpy's notation
};

constexpr std::array<DTypeEntry, 7> dtypes{{{DType::f32, "float32", "f4"},
                                            {DType::f16, "float16", "f2"},
                                            {DType::bf16, "bfloat16", "u2"},
                                            {DType::i32, "int32", "i4"},
                                            {DType::i64, "int64", "i8"},
                                            {DType::u8, "uint8", "u1"},
                                            {DType::i8, "int8", "i1"}}};

const DTypeEntry& entry(DType dtype) {
    return dtypes[static_cast<size_t>(dtype)];
}

DType dtype_of(const py::array& array, const std::string& where) {
    const py::dtype dtype = array.dtype();
    const std::string code = dtype.kind() + std::to_string(dtype.itemsize());
    for (const DTypeEntry& candidate : dtypes) {
        if (code == candidate.numpy) {
            return candidate.dtype;
        }
    }
    throw py::type_error(where + ": no kernel supports " + std::string(py::str(dtype)));
}

// Checks that no dimension except the first is strided: kernels step by the stride of the first
// dimension only.
void check_layout(const TensorView& view, const std::string& where) {
    const auto last = static_cast<size_t>(view.rank - 1);
    if (view.shape[last] > 1 && view.stride[last] != 1) {
        throw py::value_error(where + ": the last dimension must be contiguous");
    }
    int64_t width = 1;
    for (size_t i = last; i > 0; --i) {
        if (view.shape[i] > 1 && view.stride[i] != width) {
            throw py::value_error(where + ": must be C-contiguous, except in the first dimension");
        }
        width *= view.shape[i];
    }
    if (view.shape[0] > 1 && view.stride[0] < width) {
        throw py::value_error(where + ": rows overlap or run backwards");
    }
}

} // namespace

const char* dtype_name(DType dtype) {
    return entry(dtype).name;
}

DType dtype_named(const std::string& name) {
    for (const DTypeEntry& candidate : dtypes) {
        if (name == candidate.name) {
            return candidate.dtype;
        }
    }
    throw py::value_error("unknown element type: " + name);
}

py::dtype numpy_dtype(DType dtype) {
    return py::dtype(entry(dtype).numpy);
}

PlanTensor array_operand(const py::array& array, const std::string& where) {
    PlanTensor tensor;
    TensorView& view = tensor.view;
    view.dtype = dtype_of(array, where);
    if (array.ndim() < 1 || array.ndim() > 4) {
        throw py::value_error(where + ": must have 1 to 4 dimensions");
    }
    const auto item = static_cast<int64_t>(size_of(view.dtype));
    const char order = array.dtype().byteorder();
    if (order != '=' && order != '|') {
        throw py::value_error(where + ": must be in the byte order of this machine");
    }
    view.data = const_cast<void*>(array.data());
    view.rank = static_cast<int>(array.ndim());
    bool aligned = reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(item) == 0;
    for (size_t i = 0; i < static_cast<size_t>(view.rank); ++i) {
        view.shape[i] = array.shape(static_cast<py::ssize_t>(i));
        const auto stride = static_cast<int64_t>(array.strides(static_cast<py::ssize_t>(i)));
        aligned = aligned && (stride % item == 0 || view.shape[i] <= 1);
        view.stride[i] = stride / item;
    }
    if (!aligned) {
        throw py::value_error(where + ": must be aligned to its elements");
    }
    if (array.size() > 0) {
        check_layout(view, where);
    }
    return tensor;
}

} // namespace penstock::bind
