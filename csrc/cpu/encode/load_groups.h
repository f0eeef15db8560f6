// Moves weights into groups of lanes and levels out of them.
#pragma once

#include <cstdint>

#include "cpu/encode/lanes.h"

namespace penstock::cpu::encode {

// Group g of `G` consecutive numbers becomes lane g % LANES of column g / LANES.
template <int COLUMNS, int G>
void load_groups(const float* weights, const float* importance, Groups<G> (&groups)[COLUMNS]) {
    for (int c = 0; c < COLUMNS; ++c) {
        for (int k = 0; k < G; ++k) {
            for (int lane = 0; lane < LANES; ++lane) {
                const int from = (c * LANES + lane) * G + k;
                groups[c].x[k][lane] = weights[from];
                groups[c].w[k][lane] = importance[from];
            }
        }
    }
}

// Writes the codes of levels in the order of the elements.
template <class Levels, int COLUMNS, int G>
void store_codes(const Lanes (&levels)[COLUMNS][G], uint8_t* codes) {
    for (int c = 0; c < COLUMNS; ++c) {
        for (int k = 0; k < G; ++k) {
            const Lanes code = Levels::code(levels[c][k]);
            for (int lane = 0; lane < LANES; ++lane) {
                codes[(c * LANES + lane) * G + k] = static_cast<uint8_t>(code[lane]);
            }
        }
    }
}

// Writes multipliers plus `bias`, one per group.
template <int COLUMNS>
void store_multipliers(const Lanes (&multipliers)[COLUMNS], int bias, uint8_t* out) {
    for (int g = 0; g < COLUMNS * LANES; ++g) {
        out[g] = static_cast<uint8_t>(static_cast<int>(multipliers[g / LANES][g % LANES]) + bias);
    }
}

} // namespace penstock::cpu::encode
