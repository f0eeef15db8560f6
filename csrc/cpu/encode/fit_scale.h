// Finds scales for groups of weights without a minimum: x ~ scale * level.
#pragma once

#include "cpu/encode/lanes.h"

namespace penstock::cpu::encode {

// The products of a group with its levels: the error of `scale` is xx - 2 scale xc + scale^2 cc.
struct LevelSums {
    Lanes xc = splat(0);
    Lanes cc = splat(0);
};

template <class Levels, int G>
PENSTOCK_INLINE LevelSums level_sums(const Groups<G>& groups, Lanes inverse) {
    LevelSums sums;
    for (int k = 0; k < G; ++k) {
        const Lanes level = Levels::nearest(groups.x[k] * inverse);
        const Lanes weighted = groups.w[k] * level;
        sums.xc += weighted * groups.x[k];
        sums.cc += weighted * level;
    }
    return sums;
}

// Returns the scale of each group with the smallest weighted squared error among many: the number
// of the largest magnitude is placed at `steps` positions from `least` to `most` times the last
// level on either side, and the scale is then fitted to the levels by least squares.
template <class Levels, int G>
Lanes fit_scale(const Groups<G>& groups, int steps, float least, float most) {
    Lanes extreme = splat(0);
    for (int k = 0; k < G; ++k) {
        extreme = select(magnitude(groups.x[k]) > magnitude(extreme), groups.x[k], extreme);
    }
    Lanes best_gain = splat(0), best = splat(0);
    const auto consider = [&](Lanes inverse) {
        const LevelSums sums = level_sums<Levels, G>(groups, inverse);
        const Lanes scale = quotient(sums.xc, sums.cc);
        const Lanes gain = scale * sums.xc;
        const LaneMask better = gain > best_gain;
        best_gain = select(better, gain, best_gain);
        best = select(better, scale, best);
    };
    const Lanes unit = quotient(splat(1), extreme);
    for (int step = 0; step < steps; ++step) {
        const float place =
            least + (most - least) * static_cast<float>(step) / static_cast<float>(steps - 1);
        consider(unit * splat(place * Levels::lowest));
        consider(unit * splat(place * Levels::highest));
    }
    consider(quotient(splat(1), best));
    consider(quotient(splat(1), best));
    return best;
}

} // namespace penstock::cpu::encode
