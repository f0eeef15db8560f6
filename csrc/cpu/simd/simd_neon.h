// The vector type in ARMv8 NEON: two registers of four lanes. Included by simd.h, which documents
// every function.
#pragma once

#include <arm_neon.h>

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int kLanes = 8;

struct F32 {
    float32x4_t low, high;
};
struct I32 {
    int32x4_t low, high;
};
struct Mask {
    uint32x4_t low, high; // each lane all ones or all zeros
};

PENSTOCK_INLINE F32 broadcast(float x) {
    return {vdupq_n_f32(x), vdupq_n_f32(x)};
}
PENSTOCK_INLINE I32 broadcast(int32_t x) {
    return {vdupq_n_s32(x), vdupq_n_s32(x)};
}
PENSTOCK_INLINE Mask first(int n) {
    const int32_t lanes[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32x4_t count = vdupq_n_s32(n);
    return {vcltq_s32(vld1q_s32(lanes), count), vcltq_s32(vld1q_s32(lanes + 4), count)};
}

// A buffer for partial vectors: NEON has no masked move.
template <class Element>
struct Tail {
    Element v[kLanes];
};
template <class Element>
PENSTOCK_INLINE Tail<Element> load_tail(const Element* p, int n) {
    Tail<Element> tail = {};
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            tail.v[i] = p[i];
    }
    return tail;
}
template <class Element>
PENSTOCK_INLINE void store_tail(Element* p, const Tail<Element>& tail, int n) {
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            p[i] = tail.v[i];
    }
}

PENSTOCK_INLINE F32 load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4)};
}
PENSTOCK_INLINE I32 load(const int32_t* p) {
    return {vld1q_s32(p), vld1q_s32(p + 4)};
}
PENSTOCK_INLINE F32 load(const float* p, int n) {
    return load(load_tail(p, n).v);
}
PENSTOCK_INLINE void store(float* p, F32 a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}
PENSTOCK_INLINE void store(int32_t* p, I32 a) {
    vst1q_s32(p, a.low);
    vst1q_s32(p + 4, a.high);
}
PENSTOCK_INLINE void store(float* p, F32 a, int n) {
    Tail<float> tail;
    store(tail.v, a);
    store_tail(p, tail, n);
}

PENSTOCK_INLINE F32 load_f16(const uint16_t* p) {
    const uint16x8_t halves = vld1q_u16(p);
    return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))),
            vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)))};
}
PENSTOCK_INLINE F32 load_f16(const uint16_t* p, int n) {
    return load_f16(load_tail(p, n).v);
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.low)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.high)));
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a, int n) {
    Tail<uint16_t> tail;
    store_f16(tail.v, a);
    store_tail(p, tail, n);
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p) {
    const uint16x8_t halves = vld1q_u16(p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(halves), 16))};
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p, int n) {
    return load_bf16(load_tail(p, n).v);
}
PENSTOCK_INLINE uint16x4_t narrow_bf16(float32x4_t a) {
    const uint32x4_t raw = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(raw, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(raw, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(raw, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16);
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a) {
    vst1_u16(p, narrow_bf16(a.low));
    vst1_u16(p + 4, narrow_bf16(a.high));
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a, int n) {
    Tail<uint16_t> tail;
    store_bf16(tail.v, a);
    store_tail(p, tail, n);
}
PENSTOCK_INLINE I32 load_i8(const int8_t* p) {
    const int16x8_t wide = vmovl_s8(vld1_s8(p));
    return {vmovl_s16(vget_low_s16(wide)), vmovl_s16(vget_high_s16(wide))};
}
PENSTOCK_INLINE I32 load_u8(const uint8_t* p) {
    const uint16x8_t wide = vmovl_u8(vld1_u8(p));
    return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(wide)))};
}
PENSTOCK_INLINE void store_i8(int8_t* p, I32 a) {
    vst1_s8(p, vmovn_s16(vcombine_s16(vmovn_s32(a.low), vmovn_s32(a.high))));
}

PENSTOCK_INLINE void store_i16(int16_t* p, I32 a) {
    vst1q_s16(p, vcombine_s16(vmovn_s32(a.low), vmovn_s32(a.high)));
}

PENSTOCK_INLINE F32 operator+(F32 a, F32 b) {
    return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}
PENSTOCK_INLINE F32 operator-(F32 a, F32 b) {
    return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}
PENSTOCK_INLINE F32 operator*(F32 a, F32 b) {
    return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
PENSTOCK_INLINE F32 operator/(F32 a, F32 b) {
    return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}
PENSTOCK_INLINE F32 operator-(F32 a) {
    return {vnegq_f32(a.low), vnegq_f32(a.high)};
}
PENSTOCK_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
PENSTOCK_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}
// Returns the second operand if either is NaN; FMIN and FMAX would return NaN.
PENSTOCK_INLINE float32x4_t lesser(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
PENSTOCK_INLINE float32x4_t greater(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
PENSTOCK_INLINE F32 min(F32 a, F32 b) {
    return {lesser(a.low, b.low), lesser(a.high, b.high)};
}
PENSTOCK_INLINE F32 max(F32 a, F32 b) {
    return {greater(a.low, b.low), greater(a.high, b.high)};
}
PENSTOCK_INLINE F32 abs(F32 a) {
    return {vabsq_f32(a.low), vabsq_f32(a.high)};
}
PENSTOCK_INLINE F32 sqrt(F32 a) {
    return {vsqrtq_f32(a.low), vsqrtq_f32(a.high)};
}
PENSTOCK_INLINE F32 round_even(F32 a) {
    return {vrndnq_f32(a.low), vrndnq_f32(a.high)};
}
PENSTOCK_INLINE I32 to_int(F32 a) {
    return {vcvtnq_s32_f32(a.low), vcvtnq_s32_f32(a.high)};
}
PENSTOCK_INLINE F32 to_float(I32 a) {
    return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)};
}
PENSTOCK_INLINE I32 as_int(F32 a) {
    return {vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)};
}
PENSTOCK_INLINE F32 as_float(I32 a) {
    return {vreinterpretq_f32_s32(a.low), vreinterpretq_f32_s32(a.high)};
}

PENSTOCK_INLINE I32 operator+(I32 a, I32 b) {
    return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}
PENSTOCK_INLINE I32 operator-(I32 a, I32 b) {
    return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
}
PENSTOCK_INLINE I32 operator&(I32 a, I32 b) {
    return {vandq_s32(a.low, b.low), vandq_s32(a.high, b.high)};
}
PENSTOCK_INLINE I32 operator|(I32 a, I32 b) {
    return {vorrq_s32(a.low, b.low), vorrq_s32(a.high, b.high)};
}
PENSTOCK_INLINE I32 operator^(I32 a, I32 b) {
    return {veorq_s32(a.low, b.low), veorq_s32(a.high, b.high)};
}
PENSTOCK_INLINE I32 max(I32 a, I32 b) {
    return {vmaxq_s32(a.low, b.low), vmaxq_s32(a.high, b.high)};
}
template <int n>
PENSTOCK_INLINE I32 shift_left(I32 a) {
    return {vshlq_n_s32(a.low, n), vshlq_n_s32(a.high, n)};
}
template <int n>
PENSTOCK_INLINE I32 shift_right(I32 a) {
    static_assert(n > 0);
    return {vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.low), n)),
            vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.high), n))};
}

PENSTOCK_INLINE Mask less(F32 a, F32 b) {
    return {vcltq_f32(a.low, b.low), vcltq_f32(a.high, b.high)};
}
PENSTOCK_INLINE Mask less_equal(F32 a, F32 b) {
    return {vcleq_f32(a.low, b.low), vcleq_f32(a.high, b.high)};
}
PENSTOCK_INLINE Mask equal(F32 a, F32 b) {
    return {vceqq_f32(a.low, b.low), vceqq_f32(a.high, b.high)};
}
PENSTOCK_INLINE Mask operator&(Mask a, Mask b) {
    return {vandq_u32(a.low, b.low), vandq_u32(a.high, b.high)};
}
PENSTOCK_INLINE Mask operator|(Mask a, Mask b) {
    return {vorrq_u32(a.low, b.low), vorrq_u32(a.high, b.high)};
}
PENSTOCK_INLINE Mask operator!(Mask a) {
    return {vmvnq_u32(a.low), vmvnq_u32(a.high)};
}
PENSTOCK_INLINE F32 select(Mask m, F32 a, F32 b) {
    return {vbslq_f32(m.low, a.low, b.low), vbslq_f32(m.high, a.high, b.high)};
}
PENSTOCK_INLINE I32 select(Mask m, I32 a, I32 b) {
    return {vbslq_s32(m.low, a.low, b.low), vbslq_s32(m.high, a.high, b.high)};
}
PENSTOCK_INLINE uint32_t bits(Mask m) {
    const uint16_t of_lane[kLanes] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t lanes = vcombine_u16(vmovn_u32(m.low), vmovn_u32(m.high));
    return vaddvq_u16(vandq_u16(lanes, vld1q_u16(of_lane)));
}
PENSTOCK_INLINE bool any(Mask m) {
    return vmaxvq_u32(vorrq_u32(m.low, m.high)) != 0;
}

// Folds the lanes with f: first the two registers, then the register with itself rotated by 2 and
// by 1.
template <class Function>
PENSTOCK_INLINE float fold_halves(F32 a, Function f) {
    float32x4_t x = f(a.low, a.high);
    x = f(x, vextq_f32(x, x, 2));
    return vgetq_lane_f32(f(x, vextq_f32(x, x, 1)), 0);
}
PENSTOCK_INLINE float reduce_add(F32 a) {
    return fold_halves(a, [](float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); });
}
PENSTOCK_INLINE int32_t reduce_add(I32 a) {
    return vaddvq_s32(vaddq_s32(a.low, a.high));
}
PENSTOCK_INLINE int32_t reduce_max(I32 a) {
    return vmaxvq_s32(vmaxq_s32(a.low, a.high));
}
PENSTOCK_INLINE float reduce_max(F32 a) {
    return fold_halves(a, [](float32x4_t x, float32x4_t y) { return greater(x, y); });
}
PENSTOCK_INLINE float reduce_min(F32 a) {
    return fold_halves(a, [](float32x4_t x, float32x4_t y) { return lesser(x, y); });
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
