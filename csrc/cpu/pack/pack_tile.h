// Writes one packed tile. Private to pack.cc.
#pragma once

#include "cpu/pack/pack.h"

namespace penstock::cpu {

// Packs rows [16 * packed_tile, 16 * (packed_tile + 1)) of `source` into packed tile `packed_tile`
// of `part`, in the layout of packed_tile.h. Rows past the end become zeros.
void pack_tile(const MatrixSource& source, const PackedMatrix& part, int64_t packed_tile);

} // namespace penstock::cpu
