// Several vectors taken through the same arithmetic abreast: each operation is done for all of them
// before the next one. An elementary function is one long chain; a processor that works on one
// vector after the other holds too few of them at a time to fill its pipes. Functions written over
// `Vector` serve F32 and Abreast<n> alike, with the same bits.
#pragma once

#include "cpu/simd.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

// How many a loop over long rows takes: as the registers hold with what else is in use.
#if defined(PENSTOCK_SIMD_AVX512)
constexpr int kAbreast = 4;
#else
constexpr int kAbreast = 1;
#endif

// 2^n for whole n from -127, where it is 0, to 127.
PENSTOCK_INLINE F32 power_of_two(F32 n) {
    return as_float(shift_left<23>(to_int(n) + broadcast(int32_t{127})));
}

// x where a < b, else y.
PENSTOCK_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return select(less(a, b), x, y);
}

template <int count>
struct Abreast {
    F32 v[count];

    Abreast() = default;
    // The same one in each place: so a constant may stand beside an Abreast.
    Abreast(F32 same) : Abreast(each([&](int) { return same; })) {}

    // f(i) in place i.
    template <class Function>
    PENSTOCK_INLINE Abreast each(const Function& f) {
        Abreast result;
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i)
            result.v[i] = f(i);
        return result;
    }
    PENSTOCK_INLINE Abreast loaded(const float* p) {
        return each([&](int i) { return load(p + i * kLanes); });
    }
    void stored(float* p) const {
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i)
            store(p + i * kLanes, v[i]);
    }

    friend Abreast operator+(const Abreast& a, const Abreast& b) {
        return each([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend Abreast operator-(const Abreast& a, const Abreast& b) {
        return each([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend Abreast operator*(const Abreast& a, const Abreast& b) {
        return each([&](int i) { return a.v[i] * b.v[i]; });
    }
    friend Abreast operator/(const Abreast& a, const Abreast& b) {
        return each([&](int i) { return a.v[i] / b.v[i]; });
    }
    friend Abreast operator-(const Abreast& a) {
        return each([&](int i) { return -a.v[i]; });
    }
    friend Abreast fma(const Abreast& a, const Abreast& b, const Abreast& c) {
        return each([&](int i) { return fma(a.v[i], b.v[i], c.v[i]); });
    }
    friend Abreast fnma(const Abreast& a, const Abreast& b, const Abreast& c) {
        return each([&](int i) { return fnma(a.v[i], b.v[i], c.v[i]); });
    }
    friend Abreast min(const Abreast& a, const Abreast& b) {
        return each([&](int i) { return min(a.v[i], b.v[i]); });
    }
    friend Abreast max(const Abreast& a, const Abreast& b) {
        return each([&](int i) { return max(a.v[i], b.v[i]); });
    }
    friend Abreast abs(const Abreast& a) {
        return each([&](int i) { return abs(a.v[i]); });
    }
    friend Abreast round_even(const Abreast& a) {
        return each([&](int i) { return round_even(a.v[i]); });
    }
    friend Abreast power_of_two(const Abreast& a) {
        return each([&](int i) { return power_of_two(a.v[i]); });
    }
    friend Abreast select_less(const Abreast& a, const Abreast& b, const Abreast& x,
                               const Abreast& y) {
        return each([&](int i) { return select_less(a.v[i], b.v[i], x.v[i], y.v[i]); });
    }
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
