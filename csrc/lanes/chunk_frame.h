// Reads the frames in which a step of the engine tells of its requests
// (penstock.engine.wire.TokenOutputs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::lanes {

// One TokenOutput. `plain`: it has tokens of the answer without logprobs, and nothing else; only
// then its time and tokens are set.
struct Row {
    std::string_view raw; // its msgpack
    std::string_view id;
    bool plain = false;
    double step_time_s = 0;
    size_t first_token = 0, num_tokens = 0; // in ChunkFrame::tokens
};

struct ChunkFrame {
    std::vector<Row> rows;
    std::vector<uint32_t> tokens;
};

// The rows of a frame's body; they point into it. False where it is another message, or broken.
bool read_chunks(std::string_view body, ChunkFrame& frame);

// A body with these rows.
std::string chunks_of(const std::vector<std::string_view>& rows);

} // namespace penstock::lanes
