// Checks the values of index tensors before a kernel uses them as addresses. No Python: violations
// throw std::invalid_argument, which pybind11 turns into ValueError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/tensor_view.h"

namespace penstock::bind {

// Every element of `values` [n] or [m, n] int32 is in 0..below - 1.
void check_below(const TensorView& values, int64_t below, const std::string& where);

// Checks that the elements of `values` [n] int32 are distinct, since two threads would otherwise
// write to one address. Elements must have been bounded before. Keeps four bytes per value up to
// the largest one seen.
class DistinctCheck {
  public:
    void operator()(const TensorView& values, const std::string& where);

  private:
    // indexed by value: number of the last call that contained it
    std::vector<uint32_t> last_call_;
    uint32_t call_ = 0;
};

// The elements of `starts` [n] int32, n >= 1, ascend from 0 to `end`; equal neighbours are allowed.
void check_starts(const TensorView& starts, int64_t end, const std::string& where);

// Rows of a tensor grouped by adapter; see AdapterRows in kernels/ops_interface.py.
struct GroupViews {
    TensorView order;  // [T]
    TensorView starts; // [R + 1]
    TensorView slots;  // [R]
};

// `starts` ascends from 0 to at most the rows of `order`; the elements of `order` up to there are
// distinct rows; every non-empty group has a slot below `capacity`.
void check_groups(const GroupViews& groups, int64_t capacity, DistinctCheck& distinct,
                  const std::string& where);

// The shape of the KV cache that block tables index.
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

// Chunks are not empty and cover tokens 0..tokens - 1 in order; each fits into its context, its
// context into its block table, and the entries for the context are valid blocks of the cache.
void check_chunks(const ChunkViews& chunks, int64_t tokens, const CacheExtent& cache);

} // namespace penstock::bind
