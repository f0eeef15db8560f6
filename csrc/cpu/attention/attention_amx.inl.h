// Attention of the rows of a task over one tile of keys, in AMX tiles instead of TileRows. Used for
// a float16 cache on ISAs with matrix tiles. Included by attention.inl.h.
//
// Operands are rounded as in attention_bf16.inl.h, but a product takes steps of 32 k, and sums the
// even and the odd k of each step separately before it adds both to the result. Within a step, keys
// that a row does not see have weight zero, which changes no bit as long as their values are
// finite; if some values are not finite, rows are computed separately.
#pragma once

#include "cpu/attention/attention_bf16.inl.h"
#include "cpu/attention/attention_rows.inl.h"
#include "cpu/simd/matrix_tiles.h"
#include "cpu/simd/unrolled.h"

#if defined(PENSTOCK_TILES_AMX) || defined(PENSTOCK_TILES_ARRAY)

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace attention {

struct AmxRows;

struct AmxNumerics : Bf16Numerics {
    using Rows = AmxRows;
    static constexpr int kDepthUnit = 32;  // k per step of a product
    static constexpr int kScoredRows = 64; // four blocks of 16 rows
};

struct AmxRows {
    static constexpr int64_t kBlock = 16; // rows of a block, the rows of a matrix tile
    static constexpr int kUnitK = AmxNumerics::kDepthUnit;
    static constexpr int kMaxVectors = 4; // vectors of sums computed together
    const Task<uint16_t>& task;
    const Step& step;
    const Buffers<AmxNumerics>& buffer;
    // number of rows for which the matrix tiles are configured; 0: not configured
    int64_t configured = 0;

    ~AmxRows() {
        if (configured != 0)
            release_tiles();
    }

    // Returns the index of a row's scores and weights, which are kept until the row's block has
    // passed all stages.
    static int64_t place(int64_t row) { return row % AmxNumerics::kScoredRows; }

    int64_t depth() const { return round_up(step.dim, kUnitK); }

    // Computes all rows with one tile of keys, and prefetches the next tile during conversion.
    // Blocks of rows pass through three stages, each one block behind the previous stage, so that
    // neither the matrix unit nor the vector unit waits for the other's latest result.
    void add(int64_t tile, Prefetcher& prefetcher) {
        const Seen all = seen_by_some(tile, 0, task.rows);
        convert_keys(tile, all, prefetcher);
        convert_values(tile, all, prefetcher);
        const bool by_token = !(all == seen_by_all(tile, 0, task.rows)) && !finite_values(all);
        const int64_t blocks = (task.rows + kBlock - 1) / kBlock;
        for (int64_t b = 0; b < blocks + 2; ++b) {
            if (b < blocks)
                score(tile, b);
            if (b >= 1 && b - 1 < blocks)
                weigh(tile, b - 1);
            if (b >= 2)
                by_token ? add_values_by_token(tile, b - 2) : add_values(tile, b - 2);
        }
    }

  private:
    // The keys [begin, end) of a tile that some rows see.
    struct Seen {
        int begin, end;

        bool operator==(const Seen&) const = default;
        bool none() const { return begin >= end; }
        bool has(int key) const { return begin <= key && key < end; }
        int first_step() const { return begin / kUnitK; }
        int steps() const { return (end - 1) / kUnitK + 1 - first_step(); }
    };

    // Return the keys that at least one of the rows [row, row + count) sees, or that all of them
    // see.
    Seen seen_by_some(int64_t tile, int64_t row, int64_t count) const {
        const int64_t first = row / step.group, last = (row + count - 1) / step.group;
        return {task.visible_from(first, tile), task.visible_to(last, tile)};
    }
    Seen seen_by_all(int64_t tile, int64_t row, int64_t count) const {
        const int64_t first = row / step.group, last = (row + count - 1) / step.group;
        return {task.visible_from(last, tile), task.visible_to(first, tile)};
    }

    int64_t rows_of(int64_t block) const { return smaller(kBlock, task.rows - block * kBlock); }

    // Configures the matrix tiles. 0 .. 3: sums; 4, 5: left operand; 6, 7: right operand.
    void configure(int64_t rows) {
        if (rows == configured)
            return;
        configured = rows;
        const auto m = static_cast<uint8_t>(rows);
        configure_tiles({{m, 64}, {m, 64}, {m, 64}, {m, 64}, {m, 64}, {m, 64}, {16, 64}, {16, 64}});
    }

    // Converts whole vectors of keys. If D ends within a step, the rest of the step is zeros.
    void convert_keys(int64_t tile, const Seen& seen, Prefetcher& prefetcher) const {
        const int64_t stride = task.call.tensor[4].stride[2];
        for (int v = seen.begin / kLanes; v * kLanes < seen.end; ++v) {
            const uint16_t* from = task.key_block(tile + v * kLanes);
            uint16_t* to = buffer.keys + v * depth() * kLanes;
            for (int64_t d = 0; d < step.dim; d += 2) {
                prefetcher.step();
                AmxNumerics::convert(to + d * kLanes, from + d * stride, stride, kLanes);
            }
            std::memset(to + step.dim * kLanes, 0,
                        static_cast<size_t>((depth() - step.dim) * kLanes) * sizeof(uint16_t));
        }
    }

    // Converts whole steps of values. Keys that no row sees become zeros.
    void convert_values(int64_t tile, const Seen& seen, Prefetcher& prefetcher) const {
        const int first = seen.first_step() * kUnitK;
        for (int key = first; key < first + seen.steps() * kUnitK; key += 2) {
            uint16_t* to = buffer.values + key * kLanes;
            if (seen.has(key) && seen.has(key + 1)) {
                convert_pair(task.value_row(tile + key), to, prefetcher);
            } else {
                convert_half(tile, key + (seen.has(key) ? 0 : 1), seen, to);
            }
        }
    }

    void convert_pair(const uint16_t* from, uint16_t* to, Prefetcher& prefetcher) const {
        const int64_t stride = task.call.tensor[5].stride[2];
        for (int64_t d = 0; d < step.value_dim; d += kLanes) {
            prefetcher.step();
            AmxNumerics::convert(to + d * kTile, from + d, stride, lanes_from(d, step.value_dim));
        }
    }

    // Converts a pair of values of which no key except `key` is seen.
    void convert_half(int64_t tile, int key, const Seen& seen, uint16_t* to) const {
        for (int64_t d = 0; d < step.value_dim; d += kLanes) {
            if (!seen.has(key)) {
                std::memset(to + d * kTile, 0, 2 * kLanes * sizeof(uint16_t));
                continue;
            }
            const uint16_t* from = task.value_row(tile + key) + d;
            store_bf16_pairs(to + d * kTile, AmxNumerics::half_column(
                                                 from, lanes_from(d, step.value_dim), key % 2));
        }
    }

    // Returns whether all values written by convert_values are finite.
    bool finite_values(const Seen& seen) const {
        constexpr uint16_t kExponent = 0x7f80;
        const int64_t first = seen.first_step() * kUnitK * kLanes;
        const int64_t count = int64_t{seen.steps()} * kUnitK * kLanes;
        unsigned not_finite = 0;
        for (int64_t d = 0; d < step.value_dim; d += kLanes) {
            const uint16_t* values = buffer.values + d * kTile + first;
            for (int64_t i = 0; i < count; ++i)
                not_finite |= (values[i] & kExponent) == kExponent ? 1U : 0U;
        }
        return not_finite == 0;
    }

    // A product of rows of `a` and vectors of `b` in `steps` steps. The result is added to `c` or
    // replaces it. In `b`, the vectors of one step are `b_stride` apart, each as rows of pairs.
    struct Product {
        const uint16_t* a;
        int64_t a_stride;
        const uint16_t* b;
        int64_t b_stride;
        int64_t steps;
        float* c;
        int64_t c_stride;
    };

    template <bool kAdd>
    static void multiply(Product product, int vectors) {
        for (; vectors >= kMaxVectors; vectors -= kMaxVectors) {
            multiply_vectors<kAdd, kMaxVectors>(product);
            product.b += kMaxVectors * product.b_stride;
            product.c += kMaxVectors * kLanes;
        }
        switch (vectors) {
        case 3: multiply_vectors<kAdd, 3>(product); break;
        case 2: multiply_vectors<kAdd, 2>(product); break;
        case 1: multiply_vectors<kAdd, 1>(product); break;
        default: break;
        }
    }

    template <bool kAdd, int vectors>
    static void multiply_vectors(const Product& product) {
        const int64_t c_bytes = product.c_stride * static_cast<int64_t>(sizeof(float));
        unrolled<vectors>([&](auto v) {
            kAdd ? load_tile<v.value>(product.c + v.value * kLanes, c_bytes) : zero_tile<v.value>();
        });
        const auto add = [&](int64_t s, auto parity) {
            load_tile<4 + parity.value>(product.a + s * kUnitK, product.a_stride * 2);
            unrolled<vectors>([&](auto v) {
                constexpr int kRight = 6 + decltype(v)::value % 2;
                load_tile<kRight>(product.b + v.value * product.b_stride + s * kUnitK * kLanes,
                                  4 * kLanes);
                multiply_bf16<v.value, 4 + decltype(parity)::value, kRight>();
            });
        };
        int64_t s = 0;
        for (; s + 1 < product.steps; s += 2) {
            add(s, Index<0>{});
            add(s + 1, Index<1>{});
        }
        if (s < product.steps)
            add(s, Index<0>{});
        unrolled<vectors>(
            [&](auto v) { store_tile<v.value>(product.c + v.value * kLanes, c_bytes); });
    }

    void score(int64_t tile, int64_t block) {
        const int64_t row = block * kBlock, count = rows_of(block);
        const Seen seen = seen_by_some(tile, row, count);
        if (seen.none())
            return;
        configure(count);
        const int first = seen.begin / kLanes;
        multiply<false>({buffer.queries + row * depth(), depth(),
                         buffer.keys + first * depth() * kLanes, depth() * kLanes, depth() / kUnitK,
                         buffer.scores + place(row) * kTile + first * kLanes, kTile},
                        (seen.end - 1) / kLanes + 1 - first);
    }

    void weigh(int64_t tile, int64_t block) const {
        const int64_t begin = block * kBlock, end = begin + rows_of(block);
        if (seen_by_some(tile, begin, end - begin).none())
            return;
        for (int64_t row = begin; row < end; ++row) {
            if (seen_by_some(tile, row, 1).none())
                std::memset(buffer.weights + place(row) * kTile, 0, kTile * sizeof(uint16_t));
        }
        for (int64_t row = begin; row < end; row += kMaxRows) {
            weigh_rows(task, buffer, tile, row, static_cast<int>(smaller(kMaxRows, end - row)),
                       place(row), AmxNumerics::weigh);
        }
    }

    void add_values(int64_t tile, int64_t block) {
        const int64_t row = block * kBlock;
        add_values(row, rows_of(block), seen_by_some(tile, row, rows_of(block)));
    }

    void add_values(int64_t row, int64_t count, const Seen& seen) {
        if (seen.none())
            return;
        configure(count);
        const int64_t first = seen.first_step() * kUnitK;
        multiply<true>({buffer.weights + place(row) * kTile + first, kTile,
                        buffer.values + first * kLanes, kTile * kLanes, seen.steps(),
                        buffer.sums + row * task.padded, task.padded},
                       static_cast<int>(task.padded / kLanes));
    }

    // Adds the values for each token separately, and only those of the keys that the token sees.
    void add_values_by_token(int64_t tile, int64_t block) {
        const int64_t end = block * kBlock + rows_of(block);
        for (int64_t row = block * kBlock; row < end;) {
            const int64_t next = smaller(end, (row / step.group + 1) * step.group);
            const Seen seen = seen_by_some(tile, row, next - row);
            Prefetcher no_prefetch;
            if (!seen.none())
                convert_values(tile, seen, no_prefetch);
            add_values(row, next - row, seen);
            row = next;
        }
    }
};

} // namespace attention
} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA

#endif
