// The vector type as plain arrays of PENSTOCK_SIMD_ARRAY lanes: the scalar ISA, and emulation of
// the wide ISAs. Included by simd.h, which documents every function.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int kLanes = PENSTOCK_SIMD_ARRAY;

struct F32 {
    float v[kLanes];
};
struct I32 {
    int32_t v[kLanes];
};
struct Mask {
    bool v[kLanes];
};

// Returns a vector whose lane i is f(i).
template <class V, class Function>
PENSTOCK_INLINE V each_lane(Function f) {
    V result;
    for (int i = 0; i < kLanes; ++i)
        result.v[i] = f(i);
    return result;
}

PENSTOCK_INLINE float widen_f16(uint16_t half) {
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    return f16_to_f32(half);
#endif
}

PENSTOCK_INLINE uint16_t narrow_f16(float value) {
#if defined(__F16C__)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return f32_to_f16(value);
#endif
}

PENSTOCK_INLINE F32 broadcast(float x) {
    return each_lane<F32>([=](int) { return x; });
}
PENSTOCK_INLINE I32 broadcast(int32_t x) {
    return each_lane<I32>([=](int) { return x; });
}
PENSTOCK_INLINE F32 load(const float* p) {
    return each_lane<F32>([=](int i) { return p[i]; });
}
PENSTOCK_INLINE I32 load(const int32_t* p) {
    return each_lane<I32>([=](int i) { return p[i]; });
}
PENSTOCK_INLINE F32 load(const float* p, int n) {
    return each_lane<F32>([=](int i) { return i < n ? p[i] : 0.0f; });
}
PENSTOCK_INLINE void store(float* p, F32 a) {
    std::memcpy(p, a.v, sizeof a.v);
}
PENSTOCK_INLINE void store(int32_t* p, I32 a) {
    std::memcpy(p, a.v, sizeof a.v);
}
PENSTOCK_INLINE void store(float* p, F32 a, int n) {
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            p[i] = a.v[i];
    }
}
PENSTOCK_INLINE F32 load_f16(const uint16_t* p) {
    return each_lane<F32>([=](int i) { return widen_f16(p[i]); });
}
PENSTOCK_INLINE F32 load_f16(const uint16_t* p, int n) {
    return each_lane<F32>([=](int i) { return i < n ? widen_f16(p[i]) : 0.0f; });
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a) {
    for (int i = 0; i < kLanes; ++i)
        p[i] = narrow_f16(a.v[i]);
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a, int n) {
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            p[i] = narrow_f16(a.v[i]);
    }
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p) {
    return each_lane<F32>([=](int i) { return bf16_to_f32(p[i]); });
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p, int n) {
    return each_lane<F32>([=](int i) { return i < n ? bf16_to_f32(p[i]) : 0.0f; });
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a) {
    for (int i = 0; i < kLanes; ++i)
        p[i] = f32_to_bf16(a.v[i]);
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a, int n) {
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            p[i] = f32_to_bf16(a.v[i]);
    }
}
PENSTOCK_INLINE I32 load_i8(const int8_t* p) {
    return each_lane<I32>([=](int i) { return static_cast<int32_t>(p[i]); });
}
PENSTOCK_INLINE I32 load_u8(const uint8_t* p) {
    return each_lane<I32>([=](int i) { return static_cast<int32_t>(p[i]); });
}

PENSTOCK_INLINE void store_i8(int8_t* p, I32 a) {
    for (int i = 0; i < kLanes; ++i)
        p[i] = static_cast<int8_t>(a.v[i]);
}

PENSTOCK_INLINE void store_i16(int16_t* p, I32 a) {
    for (int i = 0; i < kLanes; ++i)
        p[i] = static_cast<int16_t>(a.v[i]);
}

PENSTOCK_INLINE F32 operator+(F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return a.v[i] + b.v[i]; });
}
PENSTOCK_INLINE F32 operator-(F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return a.v[i] - b.v[i]; });
}
PENSTOCK_INLINE F32 operator*(F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return a.v[i] * b.v[i]; });
}
PENSTOCK_INLINE F32 operator/(F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return a.v[i] / b.v[i]; });
}
PENSTOCK_INLINE F32 operator-(F32 a) {
    return each_lane<F32>([&](int i) { return -a.v[i]; });
}
// Rounds twice: without an FMA instruction, a true fma would cost a library call per lane.
PENSTOCK_INLINE F32 fma(F32 a, F32 b, F32 c) {
#if defined(__FMA__)
    return each_lane<F32>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
    return a * b + c;
#endif
}
PENSTOCK_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    return fma(-a, b, c);
}
PENSTOCK_INLINE F32 min(F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
PENSTOCK_INLINE F32 max(F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
PENSTOCK_INLINE F32 abs(F32 a) {
    return each_lane<F32>([&](int i) { return __builtin_fabsf(a.v[i]); });
}
PENSTOCK_INLINE F32 sqrt(F32 a) {
    return each_lane<F32>([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
PENSTOCK_INLINE F32 round_even(F32 a) {
    return each_lane<F32>([&](int i) { return __builtin_rintf(a.v[i]); });
}
PENSTOCK_INLINE I32 to_int(F32 a) {
    return each_lane<I32>([&](int i) { return static_cast<int32_t>(__builtin_rintf(a.v[i])); });
}
PENSTOCK_INLINE F32 to_float(I32 a) {
    return each_lane<F32>([&](int i) { return static_cast<float>(a.v[i]); });
}
PENSTOCK_INLINE I32 as_int(F32 a) {
    return each_lane<I32>([&](int i) { return static_cast<int32_t>(float_bits(a.v[i])); });
}
PENSTOCK_INLINE F32 as_float(I32 a) {
    return each_lane<F32>([&](int i) { return bits_float(static_cast<uint32_t>(a.v[i])); });
}

// Returns lane i as an unsigned integer, so that wrapping is defined.
PENSTOCK_INLINE uint32_t lane(I32 a, int i) {
    return static_cast<uint32_t>(a.v[i]);
}

PENSTOCK_INLINE I32 operator+(I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return static_cast<int32_t>(lane(a, i) + lane(b, i)); });
}
PENSTOCK_INLINE I32 operator-(I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return static_cast<int32_t>(lane(a, i) - lane(b, i)); });
}
PENSTOCK_INLINE I32 operator&(I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return a.v[i] & b.v[i]; });
}
PENSTOCK_INLINE I32 operator|(I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return a.v[i] | b.v[i]; });
}
PENSTOCK_INLINE I32 operator^(I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return a.v[i] ^ b.v[i]; });
}
PENSTOCK_INLINE I32 max(I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int n>
PENSTOCK_INLINE I32 shift_left(I32 a) {
    return each_lane<I32>([&](int i) { return static_cast<int32_t>(lane(a, i) << n); });
}
template <int n>
PENSTOCK_INLINE I32 shift_right(I32 a) {
    return each_lane<I32>([&](int i) { return static_cast<int32_t>(lane(a, i) >> n); });
}

PENSTOCK_INLINE Mask less(F32 a, F32 b) {
    return each_lane<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
PENSTOCK_INLINE Mask less_equal(F32 a, F32 b) {
    return each_lane<Mask>([&](int i) { return a.v[i] <= b.v[i]; });
}
PENSTOCK_INLINE Mask equal(F32 a, F32 b) {
    return each_lane<Mask>([&](int i) { return a.v[i] == b.v[i]; });
}
PENSTOCK_INLINE Mask operator&(Mask a, Mask b) {
    return each_lane<Mask>([&](int i) { return a.v[i] && b.v[i]; });
}
PENSTOCK_INLINE Mask operator|(Mask a, Mask b) {
    return each_lane<Mask>([&](int i) { return a.v[i] || b.v[i]; });
}
PENSTOCK_INLINE Mask operator!(Mask a) {
    return each_lane<Mask>([&](int i) { return !a.v[i]; });
}
PENSTOCK_INLINE Mask first(int n) {
    return each_lane<Mask>([=](int i) { return i < n; });
}
PENSTOCK_INLINE F32 select(Mask m, F32 a, F32 b) {
    return each_lane<F32>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
PENSTOCK_INLINE I32 select(Mask m, I32 a, I32 b) {
    return each_lane<I32>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
PENSTOCK_INLINE uint32_t bits(Mask m) {
    uint32_t result = 0;
    for (int i = 0; i < kLanes; ++i)
        result |= static_cast<uint32_t>(m.v[i]) << i;
    return result;
}
PENSTOCK_INLINE bool any(Mask m) {
    return bits(m) != 0;
}

template <class Function>
PENSTOCK_INLINE float fold_halves(F32 a, Function f) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i)
            a.v[i] = f(a.v[i], a.v[i + half]);
    }
    return a.v[0];
}
PENSTOCK_INLINE float reduce_add(F32 a) {
    return fold_halves(a, [](float x, float y) { return x + y; });
}
PENSTOCK_INLINE int32_t reduce_add(I32 a) {
    uint32_t sum = 0;
    for (int i = 0; i < kLanes; ++i)
        sum += lane(a, i);
    return static_cast<int32_t>(sum);
}
PENSTOCK_INLINE int32_t reduce_max(I32 a) {
    int32_t largest = a.v[0];
    for (int i = 1; i < kLanes; ++i)
        largest = a.v[i] > largest ? a.v[i] : largest;
    return largest;
}
PENSTOCK_INLINE float reduce_max(F32 a) {
    return fold_halves(a, [](float x, float y) { return x > y ? x : y; });
}
PENSTOCK_INLINE float reduce_min(F32 a) {
    return fold_halves(a, [](float x, float y) { return x < y ? x : y; });
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
