// The vector type in AVX-512 F, BW, DQ and VL. Included by simd.h, which documents every function.
#pragma once

#include <immintrin.h>

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int kLanes = 16;

struct F32 {
    __m512 v;
};
struct I32 {
    __m512i v;
};
struct Mask {
    __mmask16 v;
};

PENSTOCK_INLINE F32 broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
PENSTOCK_INLINE I32 broadcast(int32_t x) {
    return {_mm512_set1_epi32(x)};
}
PENSTOCK_INLINE Mask first(int n) {
    const uint32_t clamped = n <= 0 ? 0u : n >= kLanes ? 16u : static_cast<uint32_t>(n);
    return {static_cast<__mmask16>((1u << clamped) - 1u)};
}

PENSTOCK_INLINE F32 load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
PENSTOCK_INLINE I32 load(const int32_t* p) {
    return {_mm512_loadu_si512(p)};
}
PENSTOCK_INLINE F32 load(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(first(n).v, p)};
}
PENSTOCK_INLINE void store(float* p, F32 a) {
    _mm512_storeu_ps(p, a.v);
}
PENSTOCK_INLINE void store(int32_t* p, I32 a) {
    _mm512_storeu_si512(p, a.v);
}
PENSTOCK_INLINE void store(float* p, F32 a, int n) {
    _mm512_mask_storeu_ps(p, first(n).v, a.v);
}

PENSTOCK_INLINE __m256i load_u16(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PENSTOCK_INLINE __m256i load_u16(const uint16_t* p, int n) {
    return _mm256_maskz_loadu_epi16(first(n).v, p);
}
PENSTOCK_INLINE void store_u16(uint16_t* p, __m256i a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
}
PENSTOCK_INLINE void store_u16(uint16_t* p, __m256i a, int n) {
    _mm256_mask_storeu_epi16(p, first(n).v, a);
}
PENSTOCK_INLINE F32 widen_bf16(__m256i a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16))};
}
PENSTOCK_INLINE __m256i narrow_f16(F32 a) {
    return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Uses integer arithmetic, since VCVTNEPS2BF16 needs one more extension and flushes subnormals.
PENSTOCK_INLINE __m256i narrow_bf16(F32 a) {
    const __m512i raw = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(raw, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(raw, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(raw, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}

PENSTOCK_INLINE F32 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(load_u16(p))};
}
PENSTOCK_INLINE F32 load_f16(const uint16_t* p, int n) {
    return {_mm512_cvtph_ps(load_u16(p, n))};
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a) {
    store_u16(p, narrow_f16(a));
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a, int n) {
    store_u16(p, narrow_f16(a), n);
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p) {
    return widen_bf16(load_u16(p));
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p, int n) {
    return widen_bf16(load_u16(p, n));
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a) {
    store_u16(p, narrow_bf16(a));
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a, int n) {
    store_u16(p, narrow_bf16(a), n);
}
PENSTOCK_INLINE I32 load_i8(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
PENSTOCK_INLINE I32 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

PENSTOCK_INLINE void store_i8(int8_t* p, I32 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

PENSTOCK_INLINE void store_i16(int16_t* p, I32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}

PENSTOCK_INLINE F32 operator+(F32 a, F32 b) {
    return {_mm512_add_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator-(F32 a, F32 b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator*(F32 a, F32 b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator/(F32 a, F32 b) {
    return {_mm512_div_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator-(F32 a) {
    return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))};
}
PENSTOCK_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
PENSTOCK_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
PENSTOCK_INLINE F32 min(F32 a, F32 b) {
    return {_mm512_min_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 max(F32 a, F32 b) {
    return {_mm512_max_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 abs(F32 a) {
    return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)};
}
PENSTOCK_INLINE F32 sqrt(F32 a) {
    return {_mm512_sqrt_ps(a.v)};
}
PENSTOCK_INLINE F32 round_even(F32 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PENSTOCK_INLINE I32 to_int(F32 a) {
    return {_mm512_cvtps_epi32(a.v)};
}
PENSTOCK_INLINE F32 to_float(I32 a) {
    return {_mm512_cvtepi32_ps(a.v)};
}
PENSTOCK_INLINE I32 as_int(F32 a) {
    return {_mm512_castps_si512(a.v)};
}
PENSTOCK_INLINE F32 as_float(I32 a) {
    return {_mm512_castsi512_ps(a.v)};
}

PENSTOCK_INLINE I32 operator+(I32 a, I32 b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator-(I32 a, I32 b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator&(I32 a, I32 b) {
    return {_mm512_and_si512(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator|(I32 a, I32 b) {
    return {_mm512_or_si512(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator^(I32 a, I32 b) {
    return {_mm512_xor_si512(a.v, b.v)};
}
PENSTOCK_INLINE I32 max(I32 a, I32 b) {
    return {_mm512_max_epi32(a.v, b.v)};
}
template <int n>
PENSTOCK_INLINE I32 shift_left(I32 a) {
    return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
PENSTOCK_INLINE I32 shift_right(I32 a) {
    return {_mm512_srli_epi32(a.v, n)};
}

PENSTOCK_INLINE Mask less(F32 a, F32 b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
PENSTOCK_INLINE Mask less_equal(F32 a, F32 b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)};
}
PENSTOCK_INLINE Mask equal(F32 a, F32 b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)};
}
PENSTOCK_INLINE Mask operator&(Mask a, Mask b) {
    return {static_cast<__mmask16>(a.v & b.v)};
}
PENSTOCK_INLINE Mask operator|(Mask a, Mask b) {
    return {static_cast<__mmask16>(a.v | b.v)};
}
PENSTOCK_INLINE Mask operator!(Mask a) {
    return {static_cast<__mmask16>(~a.v)};
}
PENSTOCK_INLINE F32 select(Mask m, F32 a, F32 b) {
    return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}
PENSTOCK_INLINE I32 select(Mask m, I32 a, I32 b) {
    return {_mm512_mask_blend_epi32(m.v, b.v, a.v)};
}
PENSTOCK_INLINE uint32_t bits(Mask m) {
    return m.v;
}
PENSTOCK_INLINE bool any(Mask m) {
    return m.v != 0;
}

// Folds by halves, a fixed order: _mm512_reduce_add_ps leaves its order to the compiler.
template <class Wide, class Narrow>
PENSTOCK_INLINE float fold_halves(F32 a, Wide wide, Narrow narrow) {
    const __m256 y = wide(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 x = narrow(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = narrow(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(narrow(x, _mm_movehdup_ps(x)));
}
PENSTOCK_INLINE float reduce_add(F32 a) {
    return fold_halves(
        a, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); },
        [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
}
PENSTOCK_INLINE int32_t reduce_add(I32 a) {
    return _mm512_reduce_add_epi32(a.v);
}
PENSTOCK_INLINE int32_t reduce_max(I32 a) {
    return _mm512_reduce_max_epi32(a.v);
}
PENSTOCK_INLINE float reduce_max(F32 a) {
    return fold_halves(
        a, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); },
        [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
}
PENSTOCK_INLINE float reduce_min(F32 a) {
    return fold_halves(
        a, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); },
        [](__m128 x, __m128 y) { return _mm_min_ps(x, y); });
}

// Computes fold_halves of eight vectors with shared shuffles: each step halves the lanes of a row
// and merges the rows of two vectors into one.
template <class Fold>
PENSTOCK_INLINE F32 fold_each(const F32 (&rows)[8], Fold fold) {
    __m512 half[4], quarter[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512 a = rows[2 * i].v, b = rows[2 * i + 1].v;
        half[i] = fold(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m512 a = half[2 * i], b = half[2 * i + 1];
        quarter[i] = fold(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    // Block j of four lanes has row j in the lower two lanes and row j + 4 in the upper two.
    const __m512 two = fold(_mm512_shuffle_ps(quarter[0], quarter[1], 0x44),
                            _mm512_shuffle_ps(quarter[0], quarter[1], 0xee));
    const __m512 one = fold(_mm512_shuffle_ps(two, two, 0x88), _mm512_shuffle_ps(two, two, 0xdd));
    const __m512i order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 13, 9, 5, 1, 12, 8, 4, 0);
    return {_mm512_permutexvar_ps(order, one)};
}
PENSTOCK_INLINE F32 reduce_add_each(const F32 (&rows)[8]) {
    return fold_each(rows, [](__m512 x, __m512 y) { return _mm512_add_ps(x, y); });
}
PENSTOCK_INLINE F32 reduce_max_each(const F32 (&rows)[8]) {
    return fold_each(rows, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); });
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
