// Creates tensor maps on the host, one per launch, without state and without device memory.
#pragma once

#include "cuda/hopper.h"

namespace penstock::cuda {

// A tensor and the boxes that are copied from it, innermost dimension first. For bfloat16
// (`item_bytes` 2) a row of a box has 64 elements (box[0]), 128 bytes in shared memory, swizzled
// over 128 bytes. For bytes (`item_bytes` 1) a row is a multiple of 16 bytes and not swizzled.
// Elements of a box outside the tensor become zero. `strides`: of dimensions 1 to 3, in elements;
// each is a multiple of 16 bytes and of the stride before it.
struct BoxedTensor {
    const void* base;
    int item_bytes;
    int64_t sizes[4];
    int64_t strides[3];
    int box[4];
};

inline bool can_be_mapped(const BoxedTensor& tensor) {
    const bool whole = tensor.item_bytes == 2 ? tensor.box[0] == kBoxColumns
                                              : tensor.item_bytes == 1 && tensor.box[0] % 16 == 0;
    bool can = reinterpret_cast<uintptr_t>(tensor.base) % 16 == 0 && whole;
    for (int i = 0; i < 4; ++i)
        can = can && tensor.sizes[i] > 0 && tensor.box[i] > 0 && tensor.box[i] <= 256;
    for (int i = 0; i < 3; ++i) {
        const int64_t before = i == 0 ? tensor.sizes[0] : tensor.strides[i - 1];
        const int64_t stride = tensor.strides[i];
        can = can && stride * tensor.item_bytes % 16 == 0 && stride % before == 0 &&
              stride < int64_t{1} << 39 && stride / before >= (i == 0 ? 1 : tensor.sizes[i]);
    }
    return can;
}

#ifdef PENSTOCK_EMULATED

inline int make_map(TensorMap& map, const BoxedTensor& tensor) {
    map.base = static_cast<const unsigned char*>(tensor.base);
    map.item_bytes = static_cast<uint32_t>(tensor.item_bytes);
    for (int i = 0; i < 4; ++i) {
        map.sizes[i] = static_cast<uint64_t>(tensor.sizes[i]);
        map.box[i] = static_cast<uint32_t>(tensor.box[i]);
    }
    for (int i = 0; i < 3; ++i)
        map.strides[i] = map.item_bytes * static_cast<uint64_t>(tensor.strides[i]);
    return 0;
}

#else

// Creates the tensor map for `tensor`; returns 0 or a CUDA error. The driver's function is looked
// up here instead of being linked, so that the library also loads on machines without a driver.
inline int make_map(TensorMap& map, const BoxedTensor& tensor) {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                                12000, cudaEnableDefault, &result);
    if (status != cudaSuccess)
        return static_cast<int>(status);
    if (result != cudaDriverEntryPointSuccess || found == nullptr)
        return static_cast<int>(cudaErrorCallRequiresNewerDriver);
    cuuint64_t sizes[4], strides[3];
    cuuint32_t box[4], steps[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; ++i) {
        sizes[i] = static_cast<cuuint64_t>(tensor.sizes[i]);
        box[i] = static_cast<cuuint32_t>(tensor.box[i]);
    }
    for (int i = 0; i < 3; ++i)
        strides[i] = tensor.item_bytes * static_cast<cuuint64_t>(tensor.strides[i]);
    const bool wide = tensor.item_bytes == 2;
    const CUresult made = reinterpret_cast<Encode>(found)(
        &map, wide ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 4,
        const_cast<void*>(tensor.base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made == CUDA_SUCCESS ? 0 : static_cast<int>(cudaErrorInvalidValue);
}

#endif

} // namespace penstock::cuda
