// The values of index tensors, before a kernel uses them as addresses. No Python; violations are
// std::invalid_argument, which the binding turns into ValueError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/tensor_view.h"

namespace penstock::bind {

// Every element of `values` [n] or [m, n] int32 lies in 0..below - 1.
void check_below(const TensorView& values, int64_t below, const std::string& where);

// That no two elements of `values` [n] int32, all in 0..some bound, are equal: two threads would
// write to one place. Keeps four bytes for each value up to the largest it has seen.
class DistinctCheck {
  public:
    void operator()(const TensorView& values, const std::string& where);

  private:
    std::vector<uint32_t> last_call_; // by value: the number of the last call that had it
    uint32_t call_ = 0;
};

// The elements of `starts` [n] int32 ascend from 0 to `end`, equals allowed; there is at least one.
void check_starts(const TensorView& starts, int64_t end, const std::string& where);

// Rows of a tensor in groups, one adapter each; see AdapterRows in kernels/ops_interface.py.
struct GroupViews {
    TensorView order;  // [T]
    TensorView starts; // [R + 1]
    TensorView slots;  // [R]
};

// Groups ascend from 0 to at most the rows of `order`, whose elements up to there name different
// rows; groups that are not empty have a slot below `capacity`.
void check_groups(const GroupViews& groups, int64_t capacity, DistinctCheck& distinct,
                  const std::string& where);

// The shape of the cache that block tables point into.
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

// Chunks are not empty, cover tokens 0..tokens - 1 in order, fit into their context and their
// context into its block table, whose entries for the context name blocks of the cache.
void check_chunks(const ChunkViews& chunks, int64_t tokens, const CacheExtent& cache);

} // namespace penstock::bind
