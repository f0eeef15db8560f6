// The vector type in the compiler's vector extension: PENSTOCK_SIMD_ARRAY lanes in two halves, each
// of which fills a register of the instruction set that the file is compiled for. The scalar ISA
// and emulation of the wide ISAs. Included by simd.h, which documents every function.
#pragma once

#include <utility>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

constexpr int kLanes = PENSTOCK_SIMD_ARRAY;
constexpr int kHalfLanes = kLanes / 2;

template <class Element, int count>
struct VectorOf {
    typedef Element Type __attribute__((vector_size(count * sizeof(Element))));
};
// Vectors of half the lanes.
template <class Element>
using Half = typename VectorOf<Element, kHalfLanes>::Type;
using FloatHalf = Half<float>;
using IntHalf = Half<int32_t>;
using UintHalf = Half<uint32_t>;

struct F32 {
    FloatHalf low, high;
};
struct I32 {
    IntHalf low, high;
};
struct Mask {
    IntHalf low, high; // each lane all ones or all zeros
};

// Returns the vector at p, of any alignment.
template <class Vector>
PENSTOCK_INLINE Vector loaded(const void* p) {
    Vector vector;
    std::memcpy(&vector, p, sizeof vector);
    return vector;
}
template <class Vector>
PENSTOCK_INLINE void stored(void* p, Vector vector) {
    std::memcpy(p, &vector, sizeof vector);
}

// Returns the same bits as a vector of another type.
template <class To, class From>
PENSTOCK_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    return reinterpret_cast<To>(from);
}

template <class Element, int... i>
PENSTOCK_INLINE Half<Element> repeated(Element x, std::integer_sequence<int, i...>) {
    return Half<Element>{((void)i, x)...};
}
template <class Element>
PENSTOCK_INLINE Half<Element> repeated(Element x) {
    return repeated(x, std::make_integer_sequence<int, kHalfLanes>{});
}

// The elements of a partial vector.
template <class Element>
struct Lanes {
    Element v[kLanes];
};
// Returns the first n elements at p, with zeros after.
template <class Element>
PENSTOCK_INLINE Lanes<Element> load_lanes_of(const Element* p, int n) {
    Lanes<Element> lanes = {};
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            lanes.v[i] = p[i];
    }
    return lanes;
}
template <class Element>
PENSTOCK_INLINE void store_lanes_of(Element* p, const Lanes<Element>& lanes, int n) {
    for (int i = 0; i < kLanes; ++i) {
        if (i < n)
            p[i] = lanes.v[i];
    }
}

PENSTOCK_INLINE F32 broadcast(float x) {
    return {repeated(x), repeated(x)};
}
PENSTOCK_INLINE I32 broadcast(int32_t x) {
    return {repeated(x), repeated(x)};
}
PENSTOCK_INLINE F32 load(const float* p) {
    return {loaded<FloatHalf>(p), loaded<FloatHalf>(p + kHalfLanes)};
}
PENSTOCK_INLINE I32 load(const int32_t* p) {
    return {loaded<IntHalf>(p), loaded<IntHalf>(p + kHalfLanes)};
}
PENSTOCK_INLINE F32 load(const float* p, int n) {
    return load(load_lanes_of(p, n).v);
}
PENSTOCK_INLINE void store(float* p, F32 a) {
    stored(p, a.low), stored(p + kHalfLanes, a.high);
}
PENSTOCK_INLINE void store(int32_t* p, I32 a) {
    stored(p, a.low), stored(p + kHalfLanes, a.high);
}
PENSTOCK_INLINE void store(float* p, F32 a, int n) {
    Lanes<float> lanes;
    store(lanes.v, a);
    store_lanes_of(p, lanes, n);
}

PENSTOCK_INLINE F32 as_float(I32 a) {
    return {bits_as<FloatHalf>(a.low), bits_as<FloatHalf>(a.high)};
}
PENSTOCK_INLINE I32 as_int(F32 a) {
    return {bits_as<IntHalf>(a.low), bits_as<IntHalf>(a.high)};
}

PENSTOCK_INLINE F32 operator+(F32 a, F32 b) {
    return {a.low + b.low, a.high + b.high};
}
PENSTOCK_INLINE F32 operator-(F32 a, F32 b) {
    return {a.low - b.low, a.high - b.high};
}
PENSTOCK_INLINE F32 operator*(F32 a, F32 b) {
    return {a.low * b.low, a.high * b.high};
}
PENSTOCK_INLINE F32 operator/(F32 a, F32 b) {
    return {a.low / b.low, a.high / b.high};
}
PENSTOCK_INLINE F32 operator-(F32 a) {
    return {-a.low, -a.high};
}
// Without an FMA instruction it rounds twice: a true fma would cost a library call per lane.
PENSTOCK_INLINE F32 fma(F32 a, F32 b, F32 c) {
#if defined(__FMA__)
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
#else
    return a * b + c;
#endif
}
PENSTOCK_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    return fma(-a, b, c);
}

PENSTOCK_INLINE I32 operator&(I32 a, I32 b) {
    return {a.low & b.low, a.high & b.high};
}
PENSTOCK_INLINE I32 operator|(I32 a, I32 b) {
    return {a.low | b.low, a.high | b.high};
}
PENSTOCK_INLINE I32 operator^(I32 a, I32 b) {
    return {a.low ^ b.low, a.high ^ b.high};
}

// Returns f(low, ...) and f(high, ...) of I32 as unsigned integers, so that wrapping is defined.
template <class Function, class... Vectors>
PENSTOCK_INLINE I32 wrapping(Function f, Vectors... of) {
    return {bits_as<IntHalf>(f(bits_as<UintHalf>(of.low)...)),
            bits_as<IntHalf>(f(bits_as<UintHalf>(of.high)...))};
}
PENSTOCK_INLINE I32 operator+(I32 a, I32 b) {
    return wrapping([](UintHalf x, UintHalf y) { return x + y; }, a, b);
}
PENSTOCK_INLINE I32 operator-(I32 a, I32 b) {
    return wrapping([](UintHalf x, UintHalf y) { return x - y; }, a, b);
}
template <int n>
PENSTOCK_INLINE I32 shift_left(I32 a) {
    return wrapping([](UintHalf x) { return x << n; }, a);
}
template <int n>
PENSTOCK_INLINE I32 shift_right(I32 a) {
    return wrapping([](UintHalf x) { return x >> n; }, a);
}

PENSTOCK_INLINE Mask less(F32 a, F32 b) {
    return {a.low < b.low, a.high < b.high};
}
PENSTOCK_INLINE Mask less_equal(F32 a, F32 b) {
    return {a.low <= b.low, a.high <= b.high};
}
PENSTOCK_INLINE Mask equal(F32 a, F32 b) {
    return {a.low == b.low, a.high == b.high};
}
PENSTOCK_INLINE Mask operator&(Mask a, Mask b) {
    return {a.low & b.low, a.high & b.high};
}
PENSTOCK_INLINE Mask operator|(Mask a, Mask b) {
    return {a.low | b.low, a.high | b.high};
}
PENSTOCK_INLINE Mask operator!(Mask a) {
    return {~a.low, ~a.high};
}
PENSTOCK_INLINE Mask first(int n) {
    constexpr int32_t kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const I32 index = load(kIndex), count = broadcast(int32_t{n});
    return {index.low < count.low, index.high < count.high};
}
PENSTOCK_INLINE I32 select(Mask m, I32 a, I32 b) {
    return {(a.low & m.low) | (b.low & ~m.low), (a.high & m.high) | (b.high & ~m.high)};
}
PENSTOCK_INLINE F32 select(Mask m, F32 a, F32 b) {
    return as_float(select(m, as_int(a), as_int(b)));
}
PENSTOCK_INLINE uint32_t bits(Mask m) {
    int32_t lanes[kLanes];
    store(lanes, I32{m.low, m.high});
    uint32_t result = 0;
    for (int i = 0; i < kLanes; ++i)
        result |= static_cast<uint32_t>(lanes[i] & 1) << i;
    return result;
}
PENSTOCK_INLINE bool any(Mask m) {
    return bits(m) != 0;
}

PENSTOCK_INLINE F32 min(F32 a, F32 b) {
    return select(less(a, b), a, b);
}
PENSTOCK_INLINE F32 max(F32 a, F32 b) {
    return select(less(b, a), a, b);
}
PENSTOCK_INLINE I32 max(I32 a, I32 b) {
    return select(Mask{a.low > b.low, a.high > b.high}, a, b);
}
PENSTOCK_INLINE F32 abs(F32 a) {
    return as_float(as_int(a) & broadcast(int32_t{0x7fffffff}));
}
PENSTOCK_INLINE F32 sqrt(F32 a) {
    float lanes[kLanes];
    store(lanes, a);
    for (float& lane : lanes)
        lane = __builtin_sqrtf(lane);
    return load(lanes);
}
// Adding 2^23 leaves no bits for fractions; numbers of that size have none.
PENSTOCK_INLINE F32 round_even(F32 a) {
    const F32 size = abs(a), whole = broadcast(0x1p23f);
    const I32 sign = as_int(a) ^ as_int(size);
    return select(less(size, whole), as_float(as_int(size + whole - whole) | sign), a);
}
PENSTOCK_INLINE I32 to_int(F32 a) {
    const F32 rounded = round_even(a);
    return {__builtin_convertvector(rounded.low, IntHalf),
            __builtin_convertvector(rounded.high, IntHalf)};
}
PENSTOCK_INLINE F32 to_float(I32 a) {
    return {__builtin_convertvector(a.low, FloatHalf), __builtin_convertvector(a.high, FloatHalf)};
}

// Returns kLanes elements widened to int32.
template <class Element>
PENSTOCK_INLINE I32 widened(const Element* p) {
    return {__builtin_convertvector(loaded<Half<Element>>(p), IntHalf),
            __builtin_convertvector(loaded<Half<Element>>(p + kHalfLanes), IntHalf)};
}
// Stores the low bits of each lane.
template <class Element>
PENSTOCK_INLINE void store_narrow(Element* p, I32 a) {
    stored(p, __builtin_convertvector(a.low, Half<Element>));
    stored(p + kHalfLanes, __builtin_convertvector(a.high, Half<Element>));
}
PENSTOCK_INLINE I32 load_i8(const int8_t* p) {
    return widened(p);
}
PENSTOCK_INLINE I32 load_u8(const uint8_t* p) {
    return widened(p);
}
PENSTOCK_INLINE void store_i8(int8_t* p, I32 a) {
    store_narrow(p, a);
}
PENSTOCK_INLINE void store_i16(int16_t* p, I32 a) {
    store_narrow(p, a);
}

#if defined(__F16C__)
PENSTOCK_INLINE F32 load_f16(const uint16_t* p) {
    const auto* from = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a) {
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    auto* to = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(to, _mm256_cvtps_ph(a.low, kRounding));
    _mm_storeu_si128(to + 1, _mm256_cvtps_ph(a.high, kRounding));
}
#else
// Does in each lane what f16_to_f32 (half.h) does.
PENSTOCK_INLINE F32 load_f16(const uint16_t* p) {
    const auto all = [](uint32_t bits) { return broadcast(static_cast<int32_t>(bits)); };
    const I32 halves = widened(p), infinite = all(0x7c00u << 13);
    const I32 sign = shift_left<16>(halves & all(0x8000u));
    const I32 magnitude = shift_left<13>(halves & all(0x7fffu));
    const Mask finite{magnitude.low < infinite.low, magnitude.high < infinite.high};
    const Mask nan{magnitude.low > infinite.low, magnitude.high > infinite.high};
    const I32 quiet = select(nan, all(0x00400000u), all(0u));
    const I32 number = as_int(as_float(magnitude) * broadcast(0x1p112f));
    return as_float(sign | select(finite, number, (magnitude + all(0x70000000u)) | quiet));
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a) {
    float lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < kLanes; ++i)
        p[i] = f32_to_f16(lanes[i]);
}
#endif
PENSTOCK_INLINE F32 load_f16(const uint16_t* p, int n) {
    return load_f16(load_lanes_of(p, n).v);
}
PENSTOCK_INLINE void store_f16(uint16_t* p, F32 a, int n) {
    Lanes<uint16_t> lanes;
    store_f16(lanes.v, a);
    store_lanes_of(p, lanes, n);
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p) {
    return as_float(shift_left<16>(widened(p)));
}
PENSTOCK_INLINE F32 load_bf16(const uint16_t* p, int n) {
    return load_bf16(load_lanes_of(p, n).v);
}
// Returns the bf16 of each lane, which are the low 16 bits.
PENSTOCK_INLINE I32 narrow_bf16(F32 a) {
    const I32 raw = as_int(a), odd = shift_right<16>(raw) & broadcast(int32_t{1});
    const I32 rounded = raw + odd + broadcast(int32_t{0x7fff});
    const I32 quiet = raw | broadcast(int32_t{0x400000});
    return shift_right<16>(select(equal(a, a), rounded, quiet));
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a) {
    store_narrow(p, narrow_bf16(a));
}
PENSTOCK_INLINE void store_bf16(uint16_t* p, F32 a, int n) {
    Lanes<uint16_t> lanes;
    store_bf16(lanes.v, a);
    store_lanes_of(p, lanes, n);
}

// Folds the halves of a vector, then the lanes of a half.
template <class Vectors, class Scalars>
PENSTOCK_INLINE float fold_halves(F32 a, Vectors vectors, Scalars scalars) {
    float lanes[kHalfLanes];
    stored(lanes, vectors(a.low, a.high));
    for (int half = kHalfLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i)
            lanes[i] = scalars(lanes[i], lanes[i + half]);
    }
    return lanes[0];
}
PENSTOCK_INLINE float reduce_add(F32 a) {
    return fold_halves(
        a, [](FloatHalf x, FloatHalf y) { return x + y; }, [](float x, float y) { return x + y; });
}
PENSTOCK_INLINE int32_t reduce_add(I32 a) {
    uint32_t lanes[kHalfLanes], sum = 0;
    stored(lanes, bits_as<UintHalf>(a.low) + bits_as<UintHalf>(a.high));
    for (const uint32_t lane : lanes)
        sum += lane;
    return static_cast<int32_t>(sum);
}
PENSTOCK_INLINE int32_t reduce_max(I32 a) {
    int32_t lanes[kLanes];
    store(lanes, a);
    int32_t largest = lanes[0];
    for (const int32_t lane : lanes)
        largest = lane > largest ? lane : largest;
    return largest;
}
PENSTOCK_INLINE float reduce_max(F32 a) {
    return fold_halves(
        a, [](FloatHalf x, FloatHalf y) { return x > y ? x : y; },
        [](float x, float y) { return x > y ? x : y; });
}
PENSTOCK_INLINE float reduce_min(F32 a) {
    return fold_halves(
        a, [](FloatHalf x, FloatHalf y) { return x < y ? x : y; },
        [](float x, float y) { return x < y ? x : y; });
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
