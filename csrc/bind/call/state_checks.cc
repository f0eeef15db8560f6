#include "bind/call/state_checks.h"

#include <algorithm>
#include <stdexcept>

namespace penstock::bind {
namespace {

const int32_t* values_of(const TensorView& view) {
    return static_cast<const int32_t*>(view.data);
}

// One row of the views.
struct StateRow {
    const std::string& where;
    int64_t row, length, start;
    int64_t source, base, target, keep, save, save_after;

    [[noreturn]] void refuse(const char* name, int64_t value, const std::string& expected) const {
        throw std::invalid_argument(where + "state_" + name + "[" + std::to_string(row) +
                                    "]: " + std::to_string(value) + " " + expected);
    }

    // Refuses the value unless `holds`. `expected` returns what is wrong with the value.
    template <class Text>
    void require(bool holds, const char* name, int64_t value, const Text& expected) const {
        if (!holds) {
            refuse(name, value, expected());
        }
    }
};

StateRow row_of(const StateViews& views, int64_t row, const std::string& where) {
    const int32_t* starts = values_of(views.query_starts);
    const int64_t length = int64_t{starts[row + 1]} - starts[row];
    return {where,
            row,
            length,
            values_of(views.context_lens)[row] - length,
            values_of(views.source)[row],
            values_of(views.base)[row],
            values_of(views.target)[row],
            values_of(views.keep)[row],
            values_of(views.save)[row],
            values_of(views.save_after)[row]};
}

void check_source(const StateRow& row, const StateExtent& extent) {
    const int64_t slots = extent.rows + extent.snapshots;
    row.require(row.target >= 0 && row.target < extent.rows, "target", row.target,
                [&] { return "is not in 0.." + std::to_string(extent.rows - 1); });
    row.require(row.source < slots, "source", row.source,
                [&] { return "is not below " + std::to_string(slots); });
    const bool live = row.source >= 0 && row.source < extent.rows;
    row.require(!live || row.source == row.target, "source", row.source,
                [&] { return "is a row, but not the target, " + std::to_string(row.target); });
    row.require(row.base % state_tile == 0 && row.base >= 0 && row.base <= row.start, "base",
                row.base,
                [&] { return "is not a multiple of 16 in 0.." + std::to_string(row.start); });
    row.require(live || row.base == row.start, "base", row.base, [&] {
        return "is not the start of the chunk, " + std::to_string(row.start) +
               ", though the source is not the row";
    });
    row.require(extent.ring == 0 || row.start - row.base < extent.ring, "base", row.base, [&] {
        return "leaves " + std::to_string(row.start - row.base) + " tokens pending, but only " +
               std::to_string(extent.ring - 1) + " are possible";
    });
}

void check_result(const StateRow& row, const StateExtent& extent) {
    row.require(row.keep >= 0 && row.keep <= row.length, "keep", row.keep, [&] {
        return "is not in 0.." + std::to_string(row.length) + ", the length of the chunk";
    });
    const int64_t end = (row.start + row.keep) / state_tile * state_tile;
    row.require(
        extent.ring == 0 || row.start + row.length - end <= extent.ring, "keep", row.keep,
        [&] { return "leaves more than " + std::to_string(extent.ring) + " tokens pending"; });
    row.require(
        extent.conv_drafts < 0 || row.length - row.keep <= extent.conv_drafts, "keep", row.keep,
        [&] { return "leaves more than " + std::to_string(extent.conv_drafts) + " draft tokens"; });
}

void check_save(const StateRow& row, const StateExtent& extent) {
    if (row.save < 0) {
        return;
    }
    const int64_t slots = extent.rows + extent.snapshots;
    row.require(row.save >= extent.rows && row.save < slots, "save", row.save, [&] {
        return "is not in " + std::to_string(extent.rows) + ".." + std::to_string(slots - 1);
    });
    row.require(row.save_after >= 0 && row.save_after <= row.keep, "save_after", row.save_after,
                [&] { return "is not in 0.." + std::to_string(row.keep); });
    row.require((row.start + row.save_after) % state_tile == 0, "save_after", row.save_after, [&] {
        return "is not at a multiple of 16 tokens: the chunk starts at " +
               std::to_string(row.start);
    });
}

} // namespace

void narrow(std::optional<StateExtent>& limit, const StateExtent& other) {
    if (!limit) {
        limit = other;
        return;
    }
    if (limit->rows != other.rows) {
        throw std::invalid_argument("states: all layers must have the same number of rows");
    }
    limit->snapshots = std::min(limit->snapshots, other.snapshots);
    limit->ring = limit->ring == 0  ? other.ring
                  : other.ring == 0 ? limit->ring
                                    : std::min(limit->ring, other.ring);
    limit->conv_drafts = limit->conv_drafts < 0  ? other.conv_drafts
                         : other.conv_drafts < 0 ? limit->conv_drafts
                                                 : std::min(limit->conv_drafts, other.conv_drafts);
}

void StateCheck::operator()(const StateViews& views, int64_t tokens, const StateExtent& extent,
                            const std::string& where) {
    const int64_t rows = views.context_lens.shape[0];
    check_starts(views.query_starts, tokens, where + "query_starts");
    saves_.clear();
    for (int64_t r = 0; r < rows; ++r) {
        const StateRow row = row_of(views, r, where);
        if (row.length < 1 || row.start < 0) {
            throw std::invalid_argument(where + "context_lens[" + std::to_string(r) +
                                        "]: is shorter than the chunk, or the chunk is empty");
        }
        check_source(row, extent);
        check_result(row, extent);
        check_save(row, extent);
        if (row.save >= 0) {
            saves_.push_back(static_cast<int32_t>(row.save));
        }
    }
    distinct_target_(views.target, where + "state_target");
    TensorView saves = views.save;
    saves.data = saves_.data();
    saves.shape[0] = static_cast<int64_t>(saves_.size());
    distinct_save_(saves, where + "state_save");
    const int32_t* source = values_of(views.source);
    for (const int32_t save : saves_) {
        if (std::find(source, source + rows, save) != source + rows) {
            throw std::invalid_argument(where + "state_save: " + std::to_string(save) +
                                        " is also the source of a chunk");
        }
    }
}

} // namespace penstock::bind
