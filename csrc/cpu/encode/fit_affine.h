// Finds scales and minima for groups of weights: x ~ scale * level + minimum, levels 0..TOP.
#pragma once

#include "cpu/encode/lanes.h"

namespace penstock::cpu::encode {

struct ScaleAndMinimum {
    Lanes scale;
    Lanes minimum;
};

// Whether minima may be positive, as those of single blocks, or not, as those of the K-quants.
enum class Minima { any, not_positive };

// Returns scale and minimum of each group with the smallest weighted squared error among many: the
// ends of the range of levels are placed around the smallest and largest number, and both are then
// fitted to the levels by least squares.
template <int TOP, int G, Minima MINIMA>
ScaleAndMinimum fit_affine(const Groups<G>& groups, int steps, float least, float most) {
    Lanes low = groups.x[0], high = groups.x[0], sw = splat(0), sx = splat(0);
    for (int k = 0; k < G; ++k) {
        low = smaller(low, groups.x[k]);
        high = larger(high, groups.x[k]);
        sw += groups.w[k];
        sx += groups.w[k] * groups.x[k];
    }
    Lanes mean = quotient(sx, sw);
    if constexpr (MINIMA == Minima::not_positive) {
        low = smaller(low, splat(0));
        mean = smaller(mean, splat(0));
    }
    ScaleAndMinimum best{splat(0), mean};
    Lanes best_gain = (mean + mean) * sx - mean * mean * sw;
    const auto consider = [&](Lanes inverse, Lanes start) {
        Lanes sq = splat(0), sqq = splat(0), sxq = splat(0);
        for (int k = 0; k < G; ++k) {
            const Lanes level = rounded(clamped((groups.x[k] - start) * inverse, 0, TOP));
            const Lanes weighted = groups.w[k] * level;
            sq += weighted;
            sqq += weighted * level;
            sxq += weighted * groups.x[k];
        }
        const Lanes determinant = sw * sqq - sq * sq;
        LaneMask usable = determinant > splat(1e-6f) * sw * sqq;
        const Lanes safe = select(usable, determinant, splat(1));
        Lanes scale = (sw * sxq - sx * sq) / safe;
        Lanes minimum = (sqq * sx - sq * sxq) / safe;
        if constexpr (MINIMA == Minima::not_positive) {
            // Without a minimum; so are equal numbers above zero, whose levels are equal too.
            const LaneMask above = ~usable | (minimum > splat(0));
            scale = select(above, quotient(sxq, sqq), scale);
            minimum = select(above, splat(0), minimum);
            usable = sqq > splat(0);
        }
        const Lanes gain = scale * sxq + minimum * sx;
        const LaneMask better = usable & (scale > splat(0)) & (gain > best_gain);
        best_gain = select(better, gain, best_gain);
        best.scale = select(better, scale, best.scale);
        best.minimum = select(better, minimum, best.minimum);
    };
    const Lanes range = high - low;
    for (int first = 0; first < steps; ++first) {
        for (int last = 0; last < steps; ++last) {
            const float part = (most - least) / static_cast<float>(steps - 1);
            const float before = least + part * static_cast<float>(first);
            const float after = least + part * static_cast<float>(last);
            const Lanes width = range * splat(1 - before - after);
            consider(quotient(splat(TOP), width), low + range * splat(before));
        }
    }
    for (int round = 0; round < 2; ++round) {
        consider(quotient(splat(1), best.scale), best.minimum);
    }
    return best;
}

} // namespace penstock::cpu::encode
