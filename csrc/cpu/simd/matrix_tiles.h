// Matrix tiles: eight registers of up to 16 rows of 64 bytes, implemented by Intel AMX or by arrays
// that compute the same bits. Tile numbers are template arguments.
//
//   constexpr bool kTiles                        whether this ISA has them
//   configure_tiles(shapes)                      sets {rows, bytes per row} of tiles 0 .. 7 and
//                                                zeroes all tiles
//   release_tiles()                              returns to the initial state; no-op without tiles
//   zero_tile<t>()
//   load_tile<t>(p, stride), store_tile<t>(p, stride)   stride in bytes between rows
//   multiply_i8<c, a, b>()                       c += a (int8) * b (uint8), int32
//   multiply_bf16<c, a, b>()                     c += a * b, float32
// b holds rows of words: byte 4 n + j (bf16: element 2 n + j) of row i is B[4 i + j][n] (bf16: B[2
// i + j][n]).
#pragma once

#include "cpu/simd/simd.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

struct TileShape {
    uint8_t rows;
    uint8_t row_bytes;
};

#if defined(PENSTOCK_TILES_AMX)

constexpr bool kTiles = true;

struct TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Written in assembly because GCC 12's _tile_loadconfig declares only 8 of the 64 bytes as read,
// and because its other intrinsics accept only literal tile numbers.
PENSTOCK_INLINE void configure_tiles(const TileShape (&shapes)[8]) {
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
        config.row_bytes[t] = shapes[t].row_bytes;
        config.rows[t] = shapes[t].rows;
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
PENSTOCK_INLINE void release_tiles() {
    asm volatile("tilerelease" : : : "memory");
}
template <int t>
PENSTOCK_INLINE void zero_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(t));
}
template <int t>
PENSTOCK_INLINE void load_tile(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(t) : "memory");
}
template <int t>
PENSTOCK_INLINE void store_tile(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(t) : "memory");
}
template <int c, int a, int b>
PENSTOCK_INLINE void multiply_i8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}
template <int c, int a, int b>
PENSTOCK_INLINE void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}

#elif defined(PENSTOCK_TILES_ARRAY)

constexpr bool kTiles = true;

struct Tile {
    uint8_t rows = 0;
    uint8_t row_bytes = 0;
    alignas(64) uint8_t byte[16][64] = {};
};

inline Tile& tile(int t) {
    static thread_local Tile tiles[8];
    return tiles[t];
}

PENSTOCK_INLINE void configure_tiles(const TileShape (&shapes)[8]) {
    for (int t = 0; t < 8; ++t) {
        tile(t) = Tile{};
        tile(t).rows = shapes[t].rows;
        tile(t).row_bytes = shapes[t].row_bytes;
    }
}
PENSTOCK_INLINE void release_tiles() {
    configure_tiles({});
}
template <int t>
PENSTOCK_INLINE void zero_tile() {
    std::memset(tile(t).byte, 0, sizeof tile(t).byte);
}
template <int t>
PENSTOCK_INLINE void load_tile(const void* p, int64_t stride) {
    zero_tile<t>();
    for (int i = 0; i < tile(t).rows; ++i) {
        std::memcpy(tile(t).byte[i], static_cast<const uint8_t*>(p) + i * stride,
                    tile(t).row_bytes);
    }
}
template <int t>
PENSTOCK_INLINE void store_tile(void* p, int64_t stride) {
    for (int i = 0; i < tile(t).rows; ++i) {
        std::memcpy(static_cast<uint8_t*>(p) + i * stride, tile(t).byte[i], tile(t).row_bytes);
    }
}

inline void multiply_i8_tiles(Tile& c, const Tile& a, const Tile& b) {
    for (int m = 0; m < c.rows; ++m) {
        int32_t sum[16];
        std::memcpy(sum, c.byte[m], 64);
        for (int k = 0; k < a.row_bytes / 4; ++k) {
            for (int n = 0; n < c.row_bytes / 4; ++n) {
                for (int j = 0; j < 4; ++j) {
                    sum[n] += static_cast<int8_t>(a.byte[m][4 * k + j]) * b.byte[k][4 * n + j];
                }
            }
        }
        std::memcpy(c.byte[m], sum, 64);
    }
}
template <int c, int a, int b>
PENSTOCK_INLINE void multiply_i8() {
    multiply_i8_tiles(tile(c), tile(a), tile(b));
}

PENSTOCK_INLINE float bf16_at(const uint8_t* from) {
    uint16_t value;
    std::memcpy(&value, from, 2);
    return bf16_to_f32(value);
}

// Even and odd products are each summed over the tile, then the two sums are added, then c.
inline void multiply_bf16_tiles(Tile& c, const Tile& a, const Tile& b) {
    for (int m = 0; m < c.rows; ++m) {
        float sum[16];
        float even[16] = {};
        float odd[16] = {};
        std::memcpy(sum, c.byte[m], 64);
        for (int k = 0; k < a.row_bytes / 4; ++k) {
            const float x0 = bf16_at(a.byte[m] + 4 * k);
            const float x1 = bf16_at(a.byte[m] + 4 * k + 2);
            for (int n = 0; n < c.row_bytes / 4; ++n) {
                even[n] = __builtin_fmaf(x0, bf16_at(b.byte[k] + 4 * n), even[n]);
                odd[n] = __builtin_fmaf(x1, bf16_at(b.byte[k] + 4 * n + 2), odd[n]);
            }
        }
        for (int n = 0; n < 16; ++n)
            sum[n] += even[n] + odd[n];
        std::memcpy(c.byte[m], sum, 64);
    }
}
template <int c, int a, int b>
PENSTOCK_INLINE void multiply_bf16() {
    multiply_bf16_tiles(tile(c), tile(a), tile(b));
}

#else

constexpr bool kTiles = false;
PENSTOCK_INLINE void release_tiles() {}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
