// What DRY must know of a sequence: for each token, the longest repetition it would prolong.
// Compiled once, for the baseline. Not a kernel: it grows with its sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace penstock::cpu {

// Token sequences that end a repetition: each of `heads`, which ascend, with `tail` behind it.
struct Breaker {
    std::vector<int32_t> heads, tail;
};

// The suffix automaton of one sequence (Blumer et al., "The smallest automaton recognizing the
// subwords of a text", 1985), and the place in it of the sequence's end. Appending a token takes
// constant time, amortised. A sequence of n tokens has at most 2n states and 3n edges, which with
// the room to grow is at most `kBytesPerToken` a token. Not thread-safe.
class DryRepetitions {
  public:
    struct Match {
        int32_t token;
        int32_t length;
    };

    static constexpr size_t kBytesPerToken = 160;

    // A match ends at the end of the sequence and begins after the last of the sequences of
    // `breakers` that it holds. Lengths above `longest` >= 1 count as `longest`.
    DryRepetitions(std::vector<Breaker> breakers, int32_t longest);

    void append(int32_t token);

    // For each token that somewhere follows the last n tokens of the sequence, n >= least >= 1:
    // the largest such n. Tokens ascend; those that are a breaker by themselves are left out. Takes
    // time in proportion to the distinct lengths up to `longest` and to what follows the shortest.
    std::vector<Match> matches(int32_t least) const;

    // What grows with the sequence.
    size_t size_bytes() const;

  private:
    // All subsequences with the same end positions; `length` is that of the longest, `link` the
    // state of the longest suffix of theirs that ends in more places, -1 at the root.
    struct State {
        int32_t length, link, first_edge, num_edges;
    };
    struct Edge {
        int32_t state, token, target, next; // `next`: another edge of the state, or -1
    };

    int32_t add_state(int32_t length, int32_t link);
    void add_edge(int32_t state, int32_t token, int32_t target);
    int32_t find_edge(int32_t state, int32_t token) const; // -1: none
    size_t slot_of(int32_t state, int32_t token) const;
    void grow_table();
    int32_t split(int32_t state, int32_t token, int32_t target);
    void extend(int32_t token);
    bool breaks() const;
    bool is_single_breaker(int32_t token) const;

    std::vector<int32_t> tokens_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_; // open addressing over edges_, -1: free
    int32_t whole_ = 0;          // the state of the whole sequence

    int32_t longest_;
    int32_t suffix_ = 0; // the state of the last `suffix_length_` tokens: what a match may span
    int32_t suffix_length_ = 0;

    std::vector<int32_t> single_breakers_;                               // ascending
    std::unordered_map<int32_t, std::vector<Breaker>> breakers_by_last_; // those with a tail
};

} // namespace penstock::cpu
