// A typed, strided view of borrowed memory. Depends on the standard library only.
#pragma once

#include <array>
#include <cstdint>

#include "penstock/dtype.h"

namespace penstock {

// Strides are in elements. Unused dimensions have extent 1. The last dimension of every tensor that
// a kernel reads or writes is contiguous.
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<int64_t, 4> shape{1, 1, 1, 1};
    std::array<int64_t, 4> stride{1, 1, 1, 1};

    template <class T>
    T* row(int64_t i) const {
        return static_cast<T*>(data) + i * stride[0];
    }
};

} // namespace penstock
