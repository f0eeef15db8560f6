// Packs LoRA adapters and holds them in slots. adapter_table.h documents the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/lora/adapter_table.h"
#include "cpu/pack/weight_memory.h"

namespace penstock::cpu {

// The factors of one slice, borrowed: a [rank, K], b [N, rank], C order. Rank 0: the slice has no
// factors.
struct AdapterFactors {
    const float* a = nullptr;
    const float* b = nullptr;
    int64_t rank = 0;
};

class AdapterSlots;

// One packed adapter. Immutable.
class PackedAdapter {
  public:
    // `factors`: one per slice of `slots`, with the slice's shape and finite values.
    PackedAdapter(const AdapterSlots& slots, std::span<const AdapterFactors> factors);

    size_t size_bytes() const { return size_bytes_; }

    // Returns whether the adapter was packed for slots of these shapes.
    bool fits(const AdapterSlots& slots) const;

    std::span<const AdapterSlice> slices() const { return slices_; }

  private:
    WeightBlock memory_;
    size_t size_bytes_ = 0;
    std::vector<AdapterSlice> slices_;
    AdapterDType dtype_;
    std::vector<int64_t> extents_; // depth, and rows of each slice
};

// A fixed number of adapter slots. `install` and `clear` must not run during a step.
class AdapterSlots {
  public:
    // Depth and rows of one slice.
    struct Shape {
        int64_t depth;
        std::vector<int64_t> rows;
    };
    AdapterSlots(int64_t capacity, int64_t max_rank, AdapterDType dtype,
                 std::span<const Shape> linears);
    AdapterSlots(const AdapterSlots&) = delete;
    AdapterSlots& operator=(const AdapterSlots&) = delete;

    void install(int64_t slot, std::shared_ptr<const PackedAdapter> adapter);
    void clear(int64_t slot);

    const AdapterTable& table() const { return table_; }
    int64_t depth_of(int64_t slice) const { return depths_.at(static_cast<size_t>(slice)); }

    // Returns the depth and rows of each slice.
    std::vector<int64_t> extents() const;

  private:
    void count_tasks(int64_t slot);

    std::vector<AdapterLinear> linears_;
    std::vector<AdapterSliceShape> shapes_;
    std::vector<int64_t> depths_; // by slice
    std::vector<AdapterSlice> slices_;
    std::vector<AdapterTasks> tasks_;
    std::vector<std::shared_ptr<const PackedAdapter>> held_;
    AdapterTable table_;
};

} // namespace penstock::cpu
