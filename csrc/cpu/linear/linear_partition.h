// Divides a product into tasks: over chunks of packed tiles, and over blocks of rows if there are
// many rows. K is never divided: one task sums each output, in one order.
#pragma once

#include "cpu/dot/bf16_pairs.h"
#include "cpu/pack/packed_tile.h"
#include "cpu/processor.h"
#include "cpu/simd/matrix_tiles.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/unrolled.h"
#include "cpu/sizes.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {

// Maximum rows that share one pass over a chunk of weights. A multiple of 6 and of 16.
constexpr int64_t kRowBlock = 96;
// Row blocks have a multiple of this many rows and nearly equal sizes, so that threads finish
// together. With matrix tiles, every block except the last has kRowBlock rows.
constexpr int64_t kRowStep = kTiles ? kRowBlock : 12;
// Maximum bytes of a chunk, which stays in the L2 cache while a row block passes over it.
constexpr int64_t kMaxChunkBytes = 256 * 1024;
// Minimum bytes of a chunk: a smaller task would cost less than dispatching it.
constexpr int64_t kMinChunkBytes = 12 * 1024;
constexpr int64_t kTasksPerThread = 8;
constexpr int64_t kDefaultThreads = 4;

// Number of float vectors that hold one value for each of a packed tile's 16 rows.
constexpr int kPackedTileVectors = kPackedTileRows / kLanes;

// Number of adjacent packed tiles that an inner loop multiplies; two if registers hold two sets of
// accumulators. Float products then share each load of activations; integer products hide each
// other's latency (Intel processors issue two VPDPBUSD per cycle with a latency of five). With
// matrix tiles, minima are computed for one packed tile at a time.
constexpr int kDensePackedTiles = kPackedTileVectors == 1 ? 2 : 1;
constexpr int kPackedTilesAtOnce = kTiles ? 1 : kDensePackedTiles;
// Maximum rows that share each load of integer packed tiles: their accumulators fill the registers.
// For arrays a small number limits the code to compile.
#if defined(PENSTOCK_SIMD_ARRAY)
constexpr int kRegisterRows = 2;
#else
constexpr int kRegisterRows = kPackedTilesAtOnce == 2 ? 6 : 4;
#endif

// The work of one task: rows [row_begin, row_end) times packed tiles [packed_tile_begin,
// packed_tile_end).
struct LinearTask {
    const PackedMatrix* part;
    int64_t packed_tile_begin;
    int64_t packed_tile_end;
    int64_t row_begin;
    int64_t row_end;
    // The first packed tile of the next task, which the same thread will probably run; null if no
    // task follows.
    const uint8_t* next = nullptr;
    int64_t next_packed_tiles = 0;
    int64_t next_packed_tile_bytes = 0;
};

// Maximum rows whose rounded activations share one load of kDensePackedTiles packed tiles: their
// accumulators just fit the registers, and their dependency chains hide each other's latency.
constexpr int kMaxPairRows = 6;
// Maximum bytes of the rounded rows that pass over the packed tiles of a task together. They stay
// in the L2 cache with these tiles.
constexpr int64_t kRoundedBytes = 576 * 1024;

// Returns the number of rounded rows of `row_bytes` bytes that pass over packed tiles together.
PENSTOCK_INLINE int64_t rounded_rows(int64_t row_bytes) {
    const int64_t fit = quotient(kRoundedBytes, row_bytes * kMaxPairRows);
    const int64_t rows = fit < 1 ? kMaxPairRows : fit * kMaxPairRows;
    return rows < kRowBlock ? rows : kRowBlock;
}

// The smallest result of prefetch_min_rows on AVX-512 processors except Zen 5.
constexpr int kMinPrefetchRows = 4;

// Returns the number of rows from which software prefetch pays: computing with one packed tile then
// takes about as long as loading the next. With fewer rows a product only waits for memory, and the
// hardware prefetcher alone streams best. Exceptions: with software prefetch, Zen 5 waits a third
// less for one row of 4-bit weights, and Zen 3, which has AVX2, waits 5 to 20 % less for one to
// three rows of integer weights, and up to 20 % less for two to six rows of int16 weights. Measured
// on two cores, with AVX-512 except on Zen 3.
PENSTOCK_INLINE int64_t prefetch_min_rows(Encoding encoding) {
    if (processor() == Processor::zen5)
        return encoding == Encoding::dense_f32 ? 4 : 1;
    if (kPackedTileVectors > 1 && processor() == Processor::amd) {
        if (is_affine(encoding))
            return 1;
        if (encoding == Encoding::dense_i16)
            return 2;
    }
    switch (encoding) {
    case Encoding::affine4:
    case Encoding::table4:
    case Encoding::table4_narrow:
    case Encoding::affine8: return kMinPrefetchRows;
    case Encoding::affine6:
    case Encoding::dense_f16: return 5;
    default: return 8;
    }
}

PENSTOCK_INLINE bool should_prefetch(const LinearTask& task) {
    return task.row_end - task.row_begin >= prefetch_min_rows(task.part->encoding);
}

// Calls f(Index<kPackedTiles>) with the number of adjacent integer packed tiles for kRows rows of a
// task. The number is 1 if the rows are too few for prefetching, so that the product waits for
// memory: two tiles are two streams, which are slower.
template <int kRows, class Function>
PENSTOCK_INLINE void with_packed_tiles(const LinearTask& task, const Function& f) {
    if constexpr (kPackedTilesAtOnce > 1 && kRows < kMinPrefetchRows) {
        if (!should_prefetch(task))
            return f(Index<1>{});
    }
    f(Index<kPackedTilesAtOnce>{});
}

// The division of either the affine or the dense parts of a product of `rows` rows.
struct LinearPartition {
    const LinearWeights* linear;
    bool affine;
    int64_t rows;
    int64_t row_blocks;
    int64_t chunk_bytes;

    // Returns the division for a call of linear_affine or linear_dense.
    PENSTOCK_INLINE LinearPartition make(const Arguments& call, bool affine) {
        const auto& linear = *static_cast<const LinearWeights*>(call.object);
        const int64_t rows = call.tensor[0].shape[0], threads = call.integer[0];
        int64_t total = 0;
        for (int i = 0; i < linear.num_parts; ++i) {
            const PackedMatrix& part = linear.parts[i];
            if (is_affine(part.encoding) == affine)
                total += part.packed_tiles * part.packed_tile_bytes;
        }
        const int64_t blocks = ceil_div(rows, kRowBlock);
        const int64_t wanted = (threads > 0 ? threads : kDefaultThreads) * kTasksPerThread;
        int64_t bytes = ceil_div(total * blocks, wanted);
        bytes = bytes < kMinChunkBytes ? kMinChunkBytes : bytes;
        const int64_t most = largest_chunk(linear, affine, rows);
        bytes = bytes > most ? most : bytes;
        return {&linear, affine, rows, blocks, bytes};
    }

    PENSTOCK_INLINE int64_t chunk_packed_tiles(const LinearPartition& cut,
                                               const PackedMatrix& part) {
        const int64_t tiles = is_affine(part.encoding) ? kPackedTilesAtOnce : kDensePackedTiles;
        const int64_t packed_tiles =
            quotient(cut.chunk_bytes, part.packed_tile_bytes) / tiles * tiles;
        return packed_tiles < tiles ? tiles : packed_tiles;
    }

    PENSTOCK_INLINE int64_t chunks(const LinearPartition& cut, const PackedMatrix& part) {
        if (is_affine(part.encoding) != cut.affine)
            return 0;
        return ceil_div(part.packed_tiles, chunk_packed_tiles(cut, part));
    }

    PENSTOCK_INLINE int64_t tasks(const LinearPartition& cut) {
        int64_t count = 0;
        for (int i = 0; i < cut.linear->num_parts; ++i)
            count += chunks(cut, cut.linear->parts[i]);
        return count * cut.row_blocks;
    }

    PENSTOCK_INLINE LinearTask task(const LinearPartition& cut, int64_t index) {
        LinearTask task = task_alone(cut, index);
        if (should_prefetch(task) && index + 1 < tasks(cut)) {
            const LinearTask next = task_alone(cut, index + 1);
            task.next = next.part->data + next.packed_tile_begin * next.part->packed_tile_bytes;
            task.next_packed_tiles = next.packed_tile_end - next.packed_tile_begin;
            task.next_packed_tile_bytes = next.part->packed_tile_bytes;
        }
        return task;
    }

  private:
    // Returns the maximum bytes of a chunk. Many rounded rows pass over a few packed tiles at a
    // time, so that a chunk need not be small; with a larger chunk they are loaded less often.
    PENSTOCK_INLINE int64_t largest_chunk(const LinearWeights& linear, bool affine, int64_t rows) {
        constexpr int64_t kManyRows = 8 * kMaxPairRows;
        const int64_t row_bytes = linear.rounded_row_bytes;
        if (affine || row_bytes == 0 || rows < kManyRows || rounded_rows(row_bytes) < kManyRows)
            return kMaxChunkBytes;
        for (int i = 0; i < linear.num_parts; ++i) {
            const Encoding encoding = linear.parts[i].encoding;
            if (encoding == Encoding::dense_f32 || encoding == Encoding::dense_f16)
                return kMaxChunkBytes;
        }
        return 16 * kMaxChunkBytes;
    }

    // Returns the task without the fields `next...`. Row blocks vary fastest, so that concurrent
    // threads share chunks in the outer cache.
    PENSTOCK_INLINE LinearTask task_alone(const LinearPartition& cut, int64_t index) {
        const int64_t block = remainder(index, cut.row_blocks);
        int64_t chunk = quotient(index, cut.row_blocks);
        int i = 0;
        while (chunk >= chunks(cut, cut.linear->parts[i])) {
            chunk -= chunks(cut, cut.linear->parts[i]);
            ++i;
        }
        const PackedMatrix& part = cut.linear->parts[i];
        const int64_t packed_tiles = chunk_packed_tiles(cut, part);
        const int64_t begin = chunk * packed_tiles;
        const int64_t end =
            begin + packed_tiles < part.packed_tiles ? begin + packed_tiles : part.packed_tiles;
        return {&part, begin, end, first_row(cut, block), first_row(cut, block + 1)};
    }

    // Returns the first row of a block, or the number of rows for the block after the last one.
    PENSTOCK_INLINE int64_t first_row(const LinearPartition& cut, int64_t block) {
        const int64_t steps = ceil_div(cut.rows, kRowStep);
        const int64_t row = quotient(steps * block, cut.row_blocks) * kRowStep;
        return row < cut.rows ? row : cut.rows;
    }
};

// Adjacent packed tiles of a part from `packed_tile` on, before `end`. If too few are left, the
// first tile is repeated: it is multiplied and stored twice.
template <int kPackedTiles>
struct PackedTileGroup {
    int64_t index[kPackedTiles];
    const uint8_t* data[kPackedTiles];

    PackedTileGroup(const PackedMatrix& part, int64_t packed_tile, int64_t end) {
        for (int j = 0; j < kPackedTiles; ++j) {
            index[j] = packed_tile + j < end ? packed_tile + j : packed_tile;
            data[j] = part.data + index[j] * part.packed_tile_bytes;
        }
    }
};

// Adds the bias and writes the columns of one packed tile for one row of the output.
PENSTOCK_INLINE void store_tile_columns(const LinearWeights& linear, const PackedMatrix& part,
                                        int64_t packed_tile,
                                        const F32 (&values)[kPackedTileVectors], float* out_row) {
    for (int p = 0; p < kPackedTileVectors; ++p) {
        F32 value = values[p];
        const int64_t left = part.rows - packed_tile * kPackedTileRows - p * kLanes;
        const int64_t column = part.column + packed_tile * kPackedTileRows + p * kLanes;
        if (left >= kLanes) {
            if (linear.bias != nullptr)
                value = value + load(linear.bias + column);
            store(out_row + column, value);
        } else if (left > 0) {
            const int n = static_cast<int>(left);
            if (linear.bias != nullptr)
                value = value + load(linear.bias + column, n);
            store(out_row + column, value, n);
        }
    }
}

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
