// Super-blocks whose groups have integer multipliers of one scale: Q3_K, Q6_K, IQ4_XS.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/encode/fit_scale.h"

namespace penstock::cpu::encode {

// The result for COLUMNS * LANES groups. `level`: of each element, before the scale.
template <int COLUMNS, int G>
struct ScaledBlock {
    uint16_t scale = 0; // float16
    Lanes multiplier[COLUMNS];
    Lanes level[COLUMNS][G];
};

template <class Levels, int COLUMNS, int G, int LOWEST, int HIGHEST>
class SuperScaleFit {
  public:
    explicit SuperScaleFit(const Groups<G> (&groups)[COLUMNS]) : groups_(groups) {}

    ScaledBlock<COLUMNS, G> fit(int steps, float least, float most) {
        float extreme = 0;
        for (int c = 0; c < COLUMNS; ++c) {
            ideal_[c] = fit_scale<Levels, G>(groups_[c], steps, least, most);
            best_[c] = splat(0);
            for (int lane = 0; lane < LANES; ++lane) {
                const float scale = ideal_[c][lane];
                extreme = std::abs(scale) > std::abs(extreme) ? scale : extreme;
            }
        }
        for (const float end : {static_cast<float>(LOWEST), static_cast<float>(HIGHEST)}) {
            float scale = extreme / end;
            for (int round = 0; round < 3 && scale != 0; ++round) {
                scale = consider(scale);
            }
        }
        return result();
    }

  private:
    // Rounds the multipliers of a scale, keeps them if the error is the smallest yet, and returns
    // the scale fitted to them.
    float consider(float wanted) {
        const uint16_t half = f32_to_f16(wanted);
        const float scale = f16_to_f32(half);
        if (scale == 0) {
            return 0;
        }
        Lanes multipliers[COLUMNS], total = splat(0), xc = splat(0), cc = splat(0);
        for (int c = 0; c < COLUMNS; ++c) {
            const Lanes nearest = rounded(clamped(ideal_[c] * splat(1 / scale), LOWEST, HIGHEST));
            Lanes best_gain = splat(0), best_xc = splat(0), best_cc = splat(0);
            multipliers[c] = splat(0);
            for (int step = -1; step <= 1; ++step) {
                const Lanes multiplier = clamped(nearest + splat(step), LOWEST, HIGHEST);
                const Lanes own = splat(scale) * multiplier;
                const LevelSums sums = level_sums<Levels, G>(groups_[c], quotient(splat(1), own));
                const Lanes gain = own * (sums.xc + sums.xc - own * sums.cc);
                const LaneMask better = gain > best_gain;
                best_gain = select(better, gain, best_gain);
                best_xc = select(better, sums.xc * multiplier, best_xc);
                best_cc = select(better, sums.cc * multiplier * multiplier, best_cc);
                multipliers[c] = select(better, multiplier, multipliers[c]);
            }
            total += best_gain;
            xc += best_xc;
            cc += best_cc;
        }
        if (lane_sum(total) > best_gain_) {
            best_gain_ = lane_sum(total);
            best_scale_ = half;
            std::copy(multipliers, multipliers + COLUMNS, best_);
        }
        return lane_sum(cc) > 0 ? lane_sum(xc) / lane_sum(cc) : 0;
    }

    ScaledBlock<COLUMNS, G> result() const {
        ScaledBlock<COLUMNS, G> block;
        block.scale = best_scale_;
        for (int c = 0; c < COLUMNS; ++c) {
            block.multiplier[c] = best_[c];
            const Lanes inverse = quotient(splat(1), splat(f16_to_f32(best_scale_)) * best_[c]);
            for (int k = 0; k < G; ++k) {
                block.level[c][k] = Levels::nearest(groups_[c].x[k] * inverse);
            }
        }
        return block;
    }

    const Groups<G> (&groups_)[COLUMNS];
    Lanes ideal_[COLUMNS];
    Lanes best_[COLUMNS];
    float best_gain_ = 0;
    uint16_t best_scale_ = 0;
};

} // namespace penstock::cpu::encode
