// Checks the values of index tensors before a kernel uses them as addresses. Does not use Python:
// violations throw std::invalid_argument, which pybind11 turns into ValueError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/tensor_view.h"

namespace penstock::bind {

// Checks that every element of `values` [n] or [m, n] int32 is in 0..below - 1.
void check_below(const TensorView& values, int64_t below, const std::string& where);

// Checks that every element of `values` [n] int32 is negative or in 0..below - 1.
void check_negative_or_below(const TensorView& values, int64_t below, const std::string& where);

// Checks that the elements of `values` [n] int32 are distinct, since otherwise two threads would
// write to one address. The elements must have passed check_below. Keeps four bytes per value up to
// the largest value seen.
class DistinctCheck {
  public:
    void operator()(const TensorView& values, const std::string& where);

  private:
    // indexed by value: number of the last call whose tensor contained the value
    std::vector<uint32_t> last_call_;
    uint32_t call_ = 0;
};

// Checks that the elements of `starts` [n] int32, n >= 1, ascend from 0 to `end`. Equal neighbours
// are allowed.
void check_starts(const TensorView& starts, int64_t end, const std::string& where);

// The rows of a tensor, grouped by adapter; see AdapterRows in kernels/ops_interface.py.
struct GroupViews {
    TensorView order;  // [T]
    TensorView starts; // [R + 1]
    TensorView slots;  // [R]
};

// Checks that `starts` ascends from 0 to at most the number of rows in `order`, that the elements
// of `order` before the last start are distinct rows, and that every non-empty group has a slot
// below `capacity`.
void check_groups(const GroupViews& groups, int64_t capacity, DistinctCheck& distinct,
                  const std::string& where);

// Sizes of the KV cache to which block tables refer.
struct CacheExtent {
    int64_t blocks = 0;
    int64_t block_size = 0;
};

// The chunks of a step; see StepInputs in kernels/ops_interface.py.
struct ChunkViews {
    TensorView query_starts; // [R + 1]
    TensorView context_lens; // [R]
    TensorView block_tables; // [R, max_blocks]
};

// Checks that no chunk is empty and that the chunks cover tokens 0..tokens - 1 in order; that each
// chunk fits into its context and each context into its block table; and that the block table
// entries of the context are blocks of the cache.
void check_chunks(const ChunkViews& chunks, int64_t tokens, const CacheExtent& cache);

// Checks that `visible` [T] int32 holds for each token of the chunks, which passed check_chunks, a
// number from its position + 1 to the length of its context, and that the numbers of a chunk never
// descend.
void check_visible(const TensorView& visible, const ChunkViews& chunks, const std::string& where);

} // namespace penstock::bind
