// Super-blocks whose groups have integer multipliers of one scale and one minimum: Q2_K, Q4_K,
// Q5_K.
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/encode/fit_affine.h"

namespace penstock::cpu::encode {

// The result for COLUMNS * LANES groups: x ~ scale * multiplier * level - minimum * other
// multiplier.
template <int COLUMNS, int G>
struct AffineBlock {
    uint16_t scale = 0;   // float16
    uint16_t minimum = 0; // float16
    Lanes multiplier[COLUMNS];
    Lanes minimum_multiplier[COLUMNS];
    Lanes level[COLUMNS][G];
};

template <int TOP, int COLUMNS, int G, int HIGHEST>
class SuperAffineFit {
  public:
    explicit SuperAffineFit(const Groups<G> (&groups)[COLUMNS]) : groups_(groups) {}

    AffineBlock<COLUMNS, G> fit(int steps, float least, float most, int tries) {
        float scale = 0, minimum = 0;
        for (int c = 0; c < COLUMNS; ++c) {
            const auto own =
                fit_affine<TOP, G, Minima::not_positive>(groups_[c], steps, least, most);
            ideal_scale_[c] = own.scale;
            ideal_minimum_[c] = -own.minimum;
            for (int lane = 0; lane < LANES; ++lane) {
                scale = std::max(scale, ideal_scale_[c][lane]);
                minimum = std::max(minimum, ideal_minimum_[c][lane]);
            }
        }
        for (int a = 0; a < tries; ++a) {
            Pair pair{scale / static_cast<float>(HIGHEST - a),
                      minimum / static_cast<float>(HIGHEST)};
            for (int round = 0; round < 3; ++round) {
                pair = consider(pair);
            }
        }
        return result();
    }

  private:
    struct Pair {
        float scale;
        float minimum;
    };

    // The error of a group, and its sums for the fit of the super-block.
    struct Trial {
        Lanes error, multiplier, minimum_multiplier, q, qq, xq;
    };

    static Trial try_pair(const Groups<G>& groups, Pair pair, Lanes multiplier, Lanes other) {
        const Lanes scale = splat(pair.scale) * multiplier, minimum = splat(pair.minimum) * other;
        const Lanes inverse = quotient(splat(1), scale);
        Trial trial{splat(0), multiplier, other, splat(0), splat(0), splat(0)};
        for (int k = 0; k < G; ++k) {
            const Lanes shifted = groups.x[k] + minimum;
            const Lanes level = rounded(clamped(shifted * inverse, 0, TOP));
            const Lanes left = shifted - scale * level;
            trial.error += groups.w[k] * left * left;
            const Lanes weighted = groups.w[k] * level;
            trial.q += weighted;
            trial.qq += weighted * level;
            trial.xq += weighted * groups.x[k];
        }
        return trial;
    }

    static void keep_better(Trial& best, const Trial& other) {
        const LaneMask better = other.error < best.error;
        best.error = select(better, other.error, best.error);
        best.multiplier = select(better, other.multiplier, best.multiplier);
        best.minimum_multiplier = select(better, other.minimum_multiplier, best.minimum_multiplier);
        best.q = select(better, other.q, best.q);
        best.qq = select(better, other.qq, best.qq);
        best.xq = select(better, other.xq, best.xq);
    }

    // Rounds the multipliers of a pair, keeps them if the error is the smallest yet, and returns
    // the pair fitted to them.
    Pair consider(Pair wanted) {
        const uint16_t half = f32_to_f16(wanted.scale), half_minimum = f32_to_f16(wanted.minimum);
        const Pair pair{f16_to_f32(half), f16_to_f32(half_minimum)};
        const float per_scale = pair.scale > 0 ? 1 / pair.scale : 0;
        const float per_minimum = pair.minimum > 0 ? 1 / pair.minimum : 0;
        Lanes multipliers[COLUMNS], others[COLUMNS], error = splat(0);
        Lanes aa = splat(0), ab = splat(0), bb = splat(0), xa = splat(0), xb = splat(0);
        for (int c = 0; c < COLUMNS; ++c) {
            const Lanes nearest = rounded(clamped(ideal_scale_[c] * splat(per_scale), 0, HIGHEST));
            const Lanes below =
                rounded(clamped(ideal_minimum_[c] * splat(per_minimum), 0, HIGHEST));
            Trial best = try_pair(groups_[c], pair, nearest, below);
            for (int step = -1; step <= 1; ++step) {
                for (int other = -1; other <= 1; ++other) {
                    if (step != 0 || other != 0) {
                        keep_better(best, try_pair(groups_[c], pair,
                                                   clamped(nearest + splat(step), 0, HIGHEST),
                                                   clamped(below + splat(other), 0, HIGHEST)));
                    }
                }
            }
            multipliers[c] = best.multiplier;
            others[c] = best.minimum_multiplier;
            error += best.error;
            Lanes sw = splat(0), sx = splat(0);
            for (int k = 0; k < G; ++k) {
                sw += groups_[c].w[k];
                sx += groups_[c].w[k] * groups_[c].x[k];
            }
            aa += best.qq * best.multiplier * best.multiplier;
            ab -= best.q * best.multiplier * best.minimum_multiplier;
            bb += sw * best.minimum_multiplier * best.minimum_multiplier;
            xa += best.xq * best.multiplier;
            xb -= sx * best.minimum_multiplier;
        }
        if (lane_sum(error) < best_error_) {
            best_error_ = lane_sum(error);
            best_scale_ = half;
            best_minimum_ = half_minimum;
            std::copy(multipliers, multipliers + COLUMNS, best_multiplier_);
            std::copy(others, others + COLUMNS, best_other_);
        }
        return solved(lane_sum(aa), lane_sum(ab), lane_sum(bb), lane_sum(xa), lane_sum(xb), pair);
    }

    // Solves the two normal equations of scale and minimum; neither may be negative.
    static Pair solved(float aa, float ab, float bb, float xa, float xb, Pair unchanged) {
        const float determinant = aa * bb - ab * ab;
        if (determinant > 1e-6f * aa * bb) {
            const Pair pair{(bb * xa - ab * xb) / determinant, (aa * xb - ab * xa) / determinant};
            return pair.scale > 0 && pair.minimum >= 0 ? pair : unchanged;
        }
        return aa > 0 && xa > 0 ? Pair{xa / aa, unchanged.minimum} : unchanged;
    }

    AffineBlock<COLUMNS, G> result() const {
        AffineBlock<COLUMNS, G> block;
        block.scale = best_scale_;
        block.minimum = best_minimum_;
        for (int c = 0; c < COLUMNS; ++c) {
            block.multiplier[c] = best_multiplier_[c];
            block.minimum_multiplier[c] = best_other_[c];
            const Lanes scale = splat(f16_to_f32(best_scale_)) * best_multiplier_[c];
            const Lanes minimum = splat(f16_to_f32(best_minimum_)) * best_other_[c];
            const Lanes inverse = quotient(splat(1), scale);
            for (int k = 0; k < G; ++k) {
                const Lanes shifted = groups_[c].x[k] + minimum;
                block.level[c][k] = rounded(clamped(shifted * inverse, 0, TOP));
            }
        }
        return block;
    }

    const Groups<G> (&groups_)[COLUMNS];
    Lanes ideal_scale_[COLUMNS];
    Lanes ideal_minimum_[COLUMNS];
    Lanes best_multiplier_[COLUMNS];
    Lanes best_other_[COLUMNS];
    float best_error_ = std::numeric_limits<float>::infinity();
    uint16_t best_scale_ = 0;
    uint16_t best_minimum_ = 0;
};

} // namespace penstock::cpu::encode
