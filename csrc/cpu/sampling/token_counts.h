// The distinct tokens of one sequence and their counts in the answer, for presence, frequency and
// repetition penalties. Not a kernel, since it grows with its sequence.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace penstock::cpu {

class TokenCounts {
  public:
    // Adds a prompt token to the seen tokens, without counting it.
    void see(int32_t token) { place_of(token); }

    // Adds the next token of the answer and counts it.
    void append(int32_t token) { ++counts_[place_of(token)]; }

    // Return the distinct tokens in order of first appearance, and their counts in the answer in
    // the same order.
    const std::vector<int32_t>& tokens() const { return tokens_; }
    const std::vector<int32_t>& counts() const { return counts_; }

  private:
    size_t place_of(int32_t token) {
        const auto [entry, is_new] = places_.try_emplace(token, tokens_.size());
        if (is_new) {
            tokens_.push_back(token);
            counts_.push_back(0);
        }
        return entry->second;
    }

    std::unordered_map<int32_t, size_t> places_;
    std::vector<int32_t> tokens_, counts_;
};

} // namespace penstock::cpu
