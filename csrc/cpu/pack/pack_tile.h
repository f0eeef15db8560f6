// Writes one packed tile. Private to pack.cc.
#pragma once

#include <array>

#include "cpu/pack/pack.h"

namespace penstock::cpu {

// Returns the index in the table of each possible q, or -1 if the table lacks it.
constexpr std::array<int8_t, 256> table_indices(const uint8_t (&table)[16]) {
    std::array<int8_t, 256> places{};
    places.fill(-1);
    for (int i = 0; i < 16; ++i)
        places[table[i]] = static_cast<int8_t>(i);
    return places;
}
constexpr std::array<int8_t, 256> kTable4Index = table_indices(kTable4);
constexpr std::array<int8_t, 256> kFloat4Index = table_indices(kFloat4);

// Packs rows [16 * packed_tile, 16 * (packed_tile + 1)) of `source` into packed tile `packed_tile`
// of `part`, in the layout of packed_tile.h. Rows past the end become zeros.
void pack_tile(const MatrixSource& source, const PackedMatrix& part, int64_t packed_tile);

} // namespace penstock::cpu
