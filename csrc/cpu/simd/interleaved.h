// Runs several vectors through the same arithmetic, interleaved, to hide instruction latency: each
// operation is done for all vectors before the next operation. An elementary function is one long
// dependency chain, and out-of-order execution alone overlaps too few of these chains to fill the
// pipelines. Functions templated on `Vector` accept F32 and Interleaved<n> and give the same bits
// for both.
#pragma once

#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Vectors per iteration of a loop over long rows, limited by the number of registers.
#if defined(PENSTOCK_SIMD_AVX512)
constexpr int kInterleaved = 4;
#else
constexpr int kInterleaved = 1;
#endif

// Returns 2^n for integer n from -127 (for which it returns 0) to 127.
PENSTOCK_INLINE F32 power_of_two(F32 n) {
    return as_float(shift_left<23>(to_int(n) + broadcast(int32_t{127})));
}

// Returns x if a < b, else y.
PENSTOCK_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return select(less(a, b), x, y);
}

template <int count>
struct Interleaved {
    F32 v[count];

    Interleaved() = default;
    // Repeats one vector n times, so that constants mix with Interleaved operands.
    Interleaved(F32 same) : Interleaved(each([&](int) { return same; })) {}

    // Returns f(i) as vector i.
    template <class Function>
    PENSTOCK_INLINE Interleaved each(const Function& f) {
        Interleaved result;
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i)
            result.v[i] = f(i);
        return result;
    }
    PENSTOCK_INLINE Interleaved loaded(const float* p) {
        return each([&](int i) { return load(p + i * kLanes); });
    }
    void stored(float* p) const {
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i)
            store(p + i * kLanes, v[i]);
    }

    friend Interleaved operator+(const Interleaved& a, const Interleaved& b) {
        return each([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend Interleaved operator-(const Interleaved& a, const Interleaved& b) {
        return each([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend Interleaved operator*(const Interleaved& a, const Interleaved& b) {
        return each([&](int i) { return a.v[i] * b.v[i]; });
    }
    friend Interleaved operator/(const Interleaved& a, const Interleaved& b) {
        return each([&](int i) { return a.v[i] / b.v[i]; });
    }
    friend Interleaved operator-(const Interleaved& a) {
        return each([&](int i) { return -a.v[i]; });
    }
    friend Interleaved fma(const Interleaved& a, const Interleaved& b, const Interleaved& c) {
        return each([&](int i) { return fma(a.v[i], b.v[i], c.v[i]); });
    }
    friend Interleaved fnma(const Interleaved& a, const Interleaved& b, const Interleaved& c) {
        return each([&](int i) { return fnma(a.v[i], b.v[i], c.v[i]); });
    }
    friend Interleaved min(const Interleaved& a, const Interleaved& b) {
        return each([&](int i) { return min(a.v[i], b.v[i]); });
    }
    friend Interleaved max(const Interleaved& a, const Interleaved& b) {
        return each([&](int i) { return max(a.v[i], b.v[i]); });
    }
    friend Interleaved abs(const Interleaved& a) {
        return each([&](int i) { return abs(a.v[i]); });
    }
    friend Interleaved round_even(const Interleaved& a) {
        return each([&](int i) { return round_even(a.v[i]); });
    }
    friend Interleaved power_of_two(const Interleaved& a) {
        return each([&](int i) { return power_of_two(a.v[i]); });
    }
    friend Interleaved select_less(const Interleaved& a, const Interleaved& b, const Interleaved& x,
                                   const Interleaved& y) {
        return each([&](int i) { return select_less(a.v[i], b.v[i], x.v[i], y.v[i]); });
    }
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
