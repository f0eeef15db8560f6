// Checks which states of recurrent layers a step reads and writes: StateRows in
// kernels/recurrent_state.py. Does not use Python; violations throw std::invalid_argument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bind/call/value_checks.h"
#include "penstock/tensor_view.h"

namespace penstock::bind {

constexpr int64_t state_tile = 16; // STATE_TILE in kernels/recurrent_state.py

// The sizes of the states of a call or of a plan.
struct StateExtent {
    int64_t rows = 0;
    int64_t snapshots = 0;
    int64_t ring = 0; // pending tokens per row; 0: no matrix states
    // Most draft tokens that the rings of convolutions have room for; -1: no convolutions.
    int64_t conv_drafts = -1;
};

// Sets `limit` to the states that both have. Throws if their numbers of rows differ.
void narrow(std::optional<StateExtent>& limit, const StateExtent& other);

struct StateViews {
    TensorView query_starts; // [R + 1]
    TensorView context_lens; // [R]
    TensorView source;       // [R], like the next five
    TensorView base;
    TensorView target;
    TensorView keep;
    TensorView save;
    TensorView save_after;
};

// Checks the chunks of a step of `tokens` tokens and their states. Two chunks must not write to one
// row or snapshot, and no chunk may read a snapshot that another one writes.
class StateCheck {
  public:
    void operator()(const StateViews& views, int64_t tokens, const StateExtent& extent,
                    const std::string& where);

  private:
    DistinctCheck distinct_target_;
    DistinctCheck distinct_save_;
    std::vector<int32_t> saves_;
};

} // namespace penstock::bind
