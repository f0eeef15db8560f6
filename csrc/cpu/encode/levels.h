// The numbers that quants represent, before the scale: consecutive integers or a table.
#pragma once

#include "cpu/encode/lanes.h"

namespace penstock::cpu::encode {

// The integers LOW..HIGH; the code of a level is its distance from LOW.
template <int LOW, int HIGH>
struct Integers {
    static constexpr float lowest = LOW, highest = HIGH;
    static Lanes nearest(Lanes value) { return rounded(clamped(value, lowest, highest)); }
    static Lanes code(Lanes level) { return level - splat(lowest); }
};

// A table of N rising numbers.
template <class Table>
struct TableLevels {
    static constexpr int N = sizeof(Table::values) / sizeof(float);
    static constexpr float lowest = Table::values[0], highest = Table::values[N - 1];

    static Lanes nearest(Lanes value) {
        Lanes level = splat(lowest);
        for (int i = 1; i < N; ++i) {
            const float low = Table::values[i - 1], high = Table::values[i];
            level += select(value > splat((low + high) / 2), splat(high - low), splat(0));
        }
        return level;
    }

    static Lanes code(Lanes level) {
        Lanes code = splat(0);
        for (int i = 1; i < N; ++i) {
            code += select(level >= splat(Table::values[i]), splat(1), splat(0));
        }
        return code;
    }
};

struct Iq4Table {
    static constexpr float values[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
};

// The magnitudes of 4-bit floats (e2m1), doubled.
struct Float4Table {
    static constexpr float values[] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};
};

using Iq4 = TableLevels<Iq4Table>;
using Float4 = TableLevels<Float4Table>;

} // namespace penstock::cpu::encode
