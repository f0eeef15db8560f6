// LoRA adapters in the form that the kernel `lora` reads. pack_adapter.cc packs them into a fixed
// number of slots, so that a recorded plan also serves adapters installed later. Depends on the
// standard library only.
//
// One slice is one matrix of a linear layer (q of q, k, v): y += B (A x) with A [R, K], B [N, R].
// Each rank r has a scale: A's row r and B's column r are stored after division by one number each,
// and `scale[r]`, the product of both numbers, multiplies (A x)[r].
//
//   A  blocks of 8 ranks, in tiles of 32 k, [8][32] each; zeros past R and past K
//   B  packed tiles of 32 outputs, [R][32] each, or in 8 bits [R / 2][32][2]; zeros past N and R
//
// Both are read forwards, once for all rows of a group. The A of all slices of a linear layer
// precede the B of all slices. Elements are stored as f32 (scale 1), as f16 (scales are powers of
// two that bring the largest element of a row to 1..2) or as int8 (scales bring the largest element
// to 127).
#pragma once

#include <cstdint>

namespace penstock::cpu {

constexpr int kAdapterOutputTile = 32;
constexpr int kAdapterTile = 32;
constexpr int kAdapterRanks = 8;

// Ranks per task of the first phase; outputs per task of the second.
constexpr int kAdapterTaskRanks = 16;
constexpr int kAdapterTaskRows = 512;

enum class AdapterDType : uint8_t { f32, f16, i8 };

constexpr int64_t adapter_dtype_bytes(AdapterDType dtype) {
    return dtype == AdapterDType::f32 ? 4 : dtype == AdapterDType::f16 ? 2 : 1;
}

constexpr int64_t padded_to(int64_t count, int64_t unit) {
    return (count + unit - 1) / unit * unit;
}

// The factors of one slice of one slot. Rank 0: the adapter does not change the slice.
struct AdapterSlice {
    const void* a = nullptr;
    const void* b = nullptr;
    const float* scale = nullptr; // [padded rank]
    int64_t rank = 0;
};

struct AdapterSliceShape {
    int64_t rows = 0;   // N
    int64_t column = 0; // first output column of the slice
};

// A linear layer: slices that share their input.
struct AdapterLinear {
    int64_t depth = 0; // K
    int64_t rows = 0;  // sum N
    int32_t first_slice = 0;
    int32_t num_slices = 0;
};

// Number of tasks in each phase, for one block of rows and one linear layer of a slot.
struct AdapterTasks {
    int32_t of_phase[2] = {0, 0};
};

// The adapters in all slots; Arguments::object points to this. Slice s of a slot is slices[slot *
// num_slices + s]; the tasks of linear layer i of a slot are tasks[slot * num_linears + i].
struct AdapterTable {
    const AdapterLinear* linears = nullptr;
    const AdapterSliceShape* shapes = nullptr;
    const AdapterSlice* slices = nullptr;
    const AdapterTasks* tasks = nullptr;
    int64_t num_linears = 0;
    int64_t num_slices = 0;
    int64_t capacity = 0;
    int64_t max_rank = 0;
    AdapterDType dtype = AdapterDType::f32;
};

constexpr int64_t tasks_of(const AdapterSlice& slice, const AdapterSliceShape& shape, int phase) {
    if (slice.rank == 0)
        return 0;
    return phase == 0 ? (slice.rank + kAdapterTaskRanks - 1) / kAdapterTaskRanks
                      : (shape.rows + kAdapterTaskRows - 1) / kAdapterTaskRows;
}

constexpr int64_t padded_rank(int64_t rank) {
    return padded_to(rank, kAdapterRanks);
}

// Returns the columns of (A x) for all slices of a linear layer at the maximum rank, in whole cache
// lines.
constexpr int64_t inner_columns(const AdapterTable& table, int64_t linear) {
    return padded_to(table.linears[linear].num_slices * padded_rank(table.max_rank), 16);
}

} // namespace penstock::cpu
