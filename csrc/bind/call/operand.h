// numpy arrays as tensors: the checks that need no knowledge of the kernel.
#pragma once

#include <pybind11/numpy.h>

#include <string>

#include "plan/recorder.h"

namespace penstock::bind {

namespace py = pybind11;

// "float32", "bfloat16", ...: as error messages and PlanTensor.dtype spell them.
const char* dtype_name(DType dtype);

// The type of that name. Raises ValueError for another name.
DType dtype_named(const std::string& name);

// The numpy type that holds `dtype`; bfloat16 is held as its bits in uint16.
py::dtype numpy_dtype(DType dtype);

// `array` as an external tensor; borrowed. `where` names the argument in errors. Raises TypeError
// for an element type that no kernel knows, ValueError for more than four dimensions, misaligned
// or byte-swapped data, or a last dimension that is not contiguous; from three dimensions on the
// whole array must be C-contiguous.
PlanTensor array_operand(const py::array& array, const std::string& where);

} // namespace penstock::bind
