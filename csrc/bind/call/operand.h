// Converts numpy arrays to tensors, with the checks that do not depend on the kernel.
#pragma once

#include <pybind11/numpy.h>

#include <string>

#include "plan/recorder.h"

namespace penstock::bind {

namespace py = pybind11;

// Returns the name used in error messages and by PlanTensor.dtype: "float32", "bfloat16", ...
const char* dtype_name(DType dtype);

// Returns the element type with this name. Raises ValueError for an unknown name.
DType dtype_named(const std::string& name);

// Returns the numpy type that stores `dtype`; bfloat16 is stored as uint16 with the same bits.
py::dtype numpy_dtype(DType dtype);

// Returns `array` as an external tensor that borrows the array's memory. `where` names the argument
// in errors. Raises TypeError for an element type that no kernel supports, and ValueError for more
// than four dimensions, misaligned or byte-swapped data, or a last dimension that is not
// contiguous. Arrays of three or four dimensions may be strided in the first dimension only.
PlanTensor array_operand(const py::array& array, const std::string& where);

} // namespace penstock::bind
