// Element types of tensors. Depends on the standard library only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

enum class DType : uint8_t { f32, f16, bf16, i32, i64, u8, i8 };

constexpr size_t size_of(DType type) {
    switch (type) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::i64: return 8;
    case DType::u8:
    case DType::i8: return 1;
    }
    return 0;
}

} // namespace penstock
