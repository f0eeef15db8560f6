// Writes one packed tile of packed weights. Private to pack.cc.
#pragma once

#include <array>

#include "cpu/pack/pack.h"

namespace penstock::cpu {

// Maps a q to its index in a table; -1 if the table lacks it.
constexpr std::array<int8_t, 256> table_indices(const uint8_t (&table)[16]) {
    std::array<int8_t, 256> places{};
    places.fill(-1);
    for (int i = 0; i < 16; ++i)
        places[table[i]] = static_cast<int8_t>(i);
    return places;
}
constexpr std::array<int8_t, 256> kTable4Index = table_indices(kTable4);
constexpr std::array<int8_t, 256> kFloat4Index = table_indices(kFloat4);

// Packs rows [packed tile * 16, (packed tile + 1) * 16) of `source` into their place in `part`, in
// the layout of packed_tile.h. Rows past the end become zeros.
void pack_tile(const MatrixSource& source, const PackedMatrix& part, int64_t packed_tile);

} // namespace penstock::cpu
