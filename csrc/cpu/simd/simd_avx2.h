// The vector type in AVX2, FMA and F16C. Included by simd.h, which documents every function.
#pragma once

#include <immintrin.h>

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int kLanes = 8;

struct F32 {
    __m256 v;
};
struct I32 {
    __m256i v;
};
struct Mask {
    __m256 v; // each lane all ones or all zeros
};

PENSTOCK_INLINE F32 broadcast(float x) {
    return {_mm256_set1_ps(x)};
}
PENSTOCK_INLINE I32 broadcast(int32_t x) {
    return {_mm256_set1_epi32(x)};
}
PENSTOCK_INLINE Mask first(int n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes))};
}
PENSTOCK_INLINE __m256i lane_mask(int n) {
    return _mm256_castps_si256(first(n).v);
}

PENSTOCK_INLINE F32 load(const float* p) {
    return {_mm256_loadu_ps(p)};
}
PENSTOCK_INLINE I32 load(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
PENSTOCK_INLINE F32 load(const float* p, int n) {
    return {_mm256_maskload_ps(p, lane_mask(n))};
}
PENSTOCK_INLINE void store(float* p, F32 a) {
    _mm256_storeu_ps(p, a.v);
}
PENSTOCK_INLINE void store(int32_t* p, I32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
PENSTOCK_INLINE void store(float* p, F32 a, int n) {
    _mm256_maskstore_ps(p, lane_mask(n), a.v);
}

// AVX2 has no masked move of 16-bit elements: partial vectors go through a small buffer.
PENSTOCK_INLINE __m128i load_u16(const uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
PENSTOCK_INLINE __m128i load_u16(const uint16_t* p, int n) {
    alignas(16) uint16_t buffer[kLanes] = {};
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            buffer[i] = p[i];
    }
    return load_u16(buffer);
}
PENSTOCK_INLINE void store_u16(uint16_t* p, __m128i a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), a);
}
PENSTOCK_INLINE void store_u16(uint16_t* p, __m128i a, int n) {
    alignas(16) uint16_t buffer[kLanes];
    store_u16(buffer, a);
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            p[i] = buffer[i];
    }
}
PENSTOCK_INLINE F32 widen_bf16(__m128i a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16))};
}
PENSTOCK_INLINE __m128i narrow_f16(F32 a) {
    return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
PENSTOCK_INLINE __m128i narrow_bf16(F32 a) {
    const __m256i raw = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(raw, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(raw, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);
    const __m256i chosen = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan));
    const __m256i high = _mm256_srli_epi32(chosen, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

PENSTOCK_INLINE F32 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(load_u16(p))};
}
PENSTOCK_INLINE F32 load_f16(const uint16_t* p, int n) {
    return {_mm256_cvtph_ps(load_u16(p, n))};
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
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
PENSTOCK_INLINE I32 load_u8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}

PENSTOCK_INLINE void store_i8(int8_t* p, I32 a) {
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

PENSTOCK_INLINE void store_i16(int16_t* p, I32 a) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1)));
}

PENSTOCK_INLINE F32 operator+(F32 a, F32 b) {
    return {_mm256_add_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator-(F32 a, F32 b) {
    return {_mm256_sub_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator*(F32 a, F32 b) {
    return {_mm256_mul_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator/(F32 a, F32 b) {
    return {_mm256_div_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 operator-(F32 a) {
    return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))};
}
PENSTOCK_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
PENSTOCK_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    return {_mm256_fnmadd_ps(a.v, b.v, c.v)};
}
PENSTOCK_INLINE F32 min(F32 a, F32 b) {
    return {_mm256_min_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 max(F32 a, F32 b) {
    return {_mm256_max_ps(a.v, b.v)};
}
PENSTOCK_INLINE F32 abs(F32 a) {
    return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}
PENSTOCK_INLINE F32 sqrt(F32 a) {
    return {_mm256_sqrt_ps(a.v)};
}
PENSTOCK_INLINE F32 round_even(F32 a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PENSTOCK_INLINE I32 to_int(F32 a) {
    return {_mm256_cvtps_epi32(a.v)};
}
PENSTOCK_INLINE F32 to_float(I32 a) {
    return {_mm256_cvtepi32_ps(a.v)};
}
PENSTOCK_INLINE I32 as_int(F32 a) {
    return {_mm256_castps_si256(a.v)};
}
PENSTOCK_INLINE F32 as_float(I32 a) {
    return {_mm256_castsi256_ps(a.v)};
}

PENSTOCK_INLINE I32 operator+(I32 a, I32 b) {
    return {_mm256_add_epi32(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator-(I32 a, I32 b) {
    return {_mm256_sub_epi32(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator&(I32 a, I32 b) {
    return {_mm256_and_si256(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator|(I32 a, I32 b) {
    return {_mm256_or_si256(a.v, b.v)};
}
PENSTOCK_INLINE I32 operator^(I32 a, I32 b) {
    return {_mm256_xor_si256(a.v, b.v)};
}
PENSTOCK_INLINE I32 max(I32 a, I32 b) {
    return {_mm256_max_epi32(a.v, b.v)};
}
template <int n>
PENSTOCK_INLINE I32 shift_left(I32 a) {
    return {_mm256_slli_epi32(a.v, n)};
}
template <int n>
PENSTOCK_INLINE I32 shift_right(I32 a) {
    return {_mm256_srli_epi32(a.v, n)};
}

PENSTOCK_INLINE Mask less(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)};
}
PENSTOCK_INLINE Mask less_equal(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)};
}
PENSTOCK_INLINE Mask equal(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)};
}
PENSTOCK_INLINE Mask operator&(Mask a, Mask b) {
    return {_mm256_and_ps(a.v, b.v)};
}
PENSTOCK_INLINE Mask operator|(Mask a, Mask b) {
    return {_mm256_or_ps(a.v, b.v)};
}
PENSTOCK_INLINE Mask operator!(Mask a) {
    return {_mm256_xor_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))};
}
PENSTOCK_INLINE F32 select(Mask m, F32 a, F32 b) {
    return {_mm256_blendv_ps(b.v, a.v, m.v)};
}
PENSTOCK_INLINE I32 select(Mask m, I32 a, I32 b) {
    return as_int(select(m, as_float(a), as_float(b)));
}
PENSTOCK_INLINE uint32_t bits(Mask m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.v));
}
PENSTOCK_INLINE bool any(Mask m) {
    return bits(m) != 0;
}

template <class Function>
PENSTOCK_INLINE float fold_halves(F32 a, Function f) {
    __m128 x = f(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = f(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(f(x, _mm_movehdup_ps(x)));
}
PENSTOCK_INLINE float reduce_add(F32 a) {
    return fold_halves(a, [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
}
PENSTOCK_INLINE int32_t reduce_add(I32 a) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
PENSTOCK_INLINE int32_t reduce_max(I32 a) {
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
PENSTOCK_INLINE float reduce_max(F32 a) {
    return fold_halves(a, [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
}
PENSTOCK_INLINE float reduce_min(F32 a) {
    return fold_halves(a, [](__m128 x, __m128 y) { return _mm_min_ps(x, y); });
}

// Computes fold_halves of eight vectors with shared shuffles: each step halves the lanes of a row
// and merges the rows of two vectors into one.
template <class Fold>
PENSTOCK_INLINE F32 fold_each(const F32 (&rows)[8], Fold fold) {
    __m256 half[4], quarter[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m256 a = rows[2 * i].v, b = rows[2 * i + 1].v;
        half[i] = fold(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m256 a = half[2 * i], b = half[2 * i + 1];
        quarter[i] = fold(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    }
    // The lower half has the even rows, the upper half the odd ones.
    const __m256 one = fold(_mm256_shuffle_ps(quarter[0], quarter[1], 0x88),
                            _mm256_shuffle_ps(quarter[0], quarter[1], 0xdd));
    return {_mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))};
}
PENSTOCK_INLINE F32 reduce_add_each(const F32 (&rows)[8]) {
    return fold_each(rows, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); });
}
PENSTOCK_INLINE F32 reduce_max_each(const F32 (&rows)[8]) {
    return fold_each(rows, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); });
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
