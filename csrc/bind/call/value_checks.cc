#include "bind/call/value_checks.h"

#include <algorithm>
#include <stdexcept>

namespace penstock::bind {
namespace {

[[noreturn]] void refuse(const std::string& message) {
    throw std::invalid_argument(message);
}

std::string at(const char* name, int64_t index) {
    return std::string(name) + "[" + std::to_string(index) + "]";
}

void check_row_of_blocks(const ChunkViews& chunks, int64_t row, int64_t blocks_used,
                         const CacheExtent& cache) {
    TensorView table = chunks.block_tables;
    table.data = table.row<int32_t>(row);
    table.rank = 1;
    table.shape[0] = blocks_used;
    table.stride[0] = 1;
    check_below(table, cache.blocks, at("block_tables", row));
}

} // namespace

void check_below(const TensorView& values, int64_t below, const std::string& where) {
    const int64_t rows = values.rank > 1 ? values.shape[0] : 1;
    const int64_t columns = values.rank > 1 ? values.shape[1] : values.shape[0];
    // Converted to unsigned, a negative number is too large: one comparison suffices, and it
    // vectorizes.
    uint32_t largest = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const auto* value = values.row<int32_t>(row);
        for (int64_t i = 0; i < columns; ++i) {
            largest = std::max(largest, static_cast<uint32_t>(value[i]));
        }
    }
    if (rows * columns > 0 && static_cast<int64_t>(largest) >= below) {
        refuse(where + ": " + std::to_string(static_cast<int32_t>(largest)) + " is not in 0.." +
               std::to_string(below - 1));
    }
}

void check_negative_or_below(const TensorView& values, int64_t below, const std::string& where) {
    const auto* value = static_cast<const int32_t*>(values.data);
    int32_t largest = -1;
    for (int64_t i = 0; i < values.shape[0]; ++i) {
        largest = std::max(largest, value[i]);
    }
    if (largest >= below) {
        refuse(where + ": " + std::to_string(largest) + " is not below " + std::to_string(below));
    }
}

void DistinctCheck::operator()(const TensorView& values, const std::string& where) {
    const auto* value = static_cast<const int32_t*>(values.data);
    if (++call_ == 0) { // the 32-bit call number wrapped around
        std::fill(last_call_.begin(), last_call_.end(), 0);
        call_ = 1;
    }
    for (int64_t i = 0; i < values.shape[0]; ++i) {
        const auto place = static_cast<size_t>(value[i]);
        if (place >= last_call_.size()) {
            last_call_.resize(place + 1, 0);
        }
        if (last_call_[place] == call_) {
            refuse(where + ": " + std::to_string(value[i]) + " occurs twice");
        }
        last_call_[place] = call_;
    }
}

void check_starts(const TensorView& starts, int64_t end, const std::string& where) {
    const auto* start = static_cast<const int32_t*>(starts.data);
    const int64_t last = starts.shape[0] - 1;
    const bool ends_right = last >= 0 && start[0] == 0 && start[last] == end;
    if (!ends_right || !std::is_sorted(start, start + last + 1)) {
        refuse(where + ": must ascend from 0 to " + std::to_string(end));
    }
}

void check_groups(const GroupViews& groups, int64_t capacity, DistinctCheck& distinct,
                  const std::string& where) {
    const auto* starts = static_cast<const int32_t*>(groups.starts.data);
    const auto* slots = static_cast<const int32_t*>(groups.slots.data);
    const int64_t count = groups.slots.shape[0], rows = groups.order.shape[0];
    const int64_t end = starts[count];
    if (end > rows) {
        refuse(where + "starts: end at " + std::to_string(end) + " of " + std::to_string(rows) +
               " rows");
    }
    check_starts(groups.starts, end, where + "starts");
    for (int64_t g = 0; g < count; ++g) {
        if (starts[g] < starts[g + 1] && (slots[g] < 0 || slots[g] >= capacity)) {
            refuse(where + "slots: " + std::to_string(slots[g]) + " is not in 0.." +
                   std::to_string(capacity - 1));
        }
    }
    TensorView used = groups.order;
    used.shape[0] = end;
    check_below(used, rows, where + "order");
    distinct(used, where + "order");
}

void check_chunks(const ChunkViews& chunks, int64_t tokens, const CacheExtent& cache) {
    const int64_t rows = chunks.context_lens.shape[0];
    const auto* starts = static_cast<const int32_t*>(chunks.query_starts.data);
    const auto* contexts = static_cast<const int32_t*>(chunks.context_lens.data);
    const int64_t max_context = chunks.block_tables.shape[1] * cache.block_size;
    if (starts[0] != 0 || starts[rows] != tokens) {
        refuse("query_starts: must run from 0 to the number of tokens, " + std::to_string(tokens));
    }
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t chunk = int64_t{starts[row + 1]} - starts[row];
        if (chunk < 1) {
            refuse(at("query_starts", row + 1) + ": chunk " + std::to_string(row) + " is empty");
        }
        if (contexts[row] < chunk || contexts[row] > max_context) {
            refuse(at("context_lens", row) + ": " + std::to_string(contexts[row]) + " is not in " +
                   std::to_string(chunk) + ".." + std::to_string(max_context) +
                   " (the chunk, the block table)");
        }
        const int64_t blocks_used = (contexts[row] + cache.block_size - 1) / cache.block_size;
        check_row_of_blocks(chunks, row, blocks_used, cache);
    }
}

void check_visible(const TensorView& visible, const ChunkViews& chunks, const std::string& where) {
    const auto* starts = static_cast<const int32_t*>(chunks.query_starts.data);
    const auto* contexts = static_cast<const int32_t*>(chunks.context_lens.data);
    const auto* ends = static_cast<const int32_t*>(visible.data);
    for (int64_t row = 0; row < chunks.context_lens.shape[0]; ++row) {
        int64_t own = int64_t{contexts[row]} - (starts[row + 1] - starts[row]) + 1;
        for (int64_t token = starts[row]; token < starts[row + 1]; ++token, ++own) {
            const int64_t before = token > starts[row] ? ends[token - 1] : 0;
            const int64_t least = std::max(own, before);
            if (ends[token] < least || ends[token] > contexts[row]) {
                refuse(at(where.c_str(), token) + ": " + std::to_string(ends[token]) +
                       " is not in " + std::to_string(least) + ".." +
                       std::to_string(contexts[row]));
            }
        }
    }
}

} // namespace penstock::bind
