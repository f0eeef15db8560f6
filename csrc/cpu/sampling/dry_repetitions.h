// Sequence state for the DRY sampler, which finds for each token the longest repetition that the
// token would extend. Not a kernel, since it grows with its sequence: compiled once, for the
// baseline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace penstock::cpu {

// Token sequences that end a repetition: any one of `heads` (ascending), followed by all of `tail`.
struct Breaker {
    std::vector<int32_t> heads, tail;
};

// The suffix automaton of one sequence (Blumer et al., "The smallest automaton recognizing the
// subwords of a text", 1985), and the state of the sequence's end. Appending a token takes
// amortized constant time. A sequence of n tokens has at most 2n states and 3n edges; with spare
// capacity they take at most `kBytesPerToken` bytes per token. Not thread-safe.
class DryRepetitions {
  public:
    struct Match {
        int32_t token;
        int32_t length;
    };

    static constexpr size_t kBytesPerToken = 160;

    // Matches end at the end of the sequence and begin after the last breaker in it. Lengths above
    // `longest` >= 1 count as `longest`.
    DryRepetitions(std::vector<Breaker> breakers, int32_t longest);

    void append(int32_t token);

    // Returns each token that follows an earlier occurrence of the last n tokens of the sequence,
    // for some n >= least >= 1, with the largest such n. Tokens ascend; tokens that are a breaker
    // by themselves are left out. The time is proportional to the number of distinct lengths up to
    // `longest` plus the number of tokens that follow the shortest match.
    std::vector<Match> matches(int32_t least) const;

    // Returns the bytes of memory that grows with the sequence.
    size_t size_bytes() const;

  private:
    // The strings that end at the same positions of the sequence. `length`: length of the longest
    // of these strings. `link`: the state of its longest suffix that also ends at other positions;
    // -1 at the root.
    struct State {
        int32_t length, link, first_edge, num_edges;
    };
    struct Edge {
        int32_t state, token, target, next; // `next`: another edge of the state, or -1
    };

    int32_t add_state(int32_t length, int32_t link);
    void add_edge(int32_t state, int32_t token, int32_t target);
    int32_t find_edge(int32_t state, int32_t token) const; // -1: not found
    size_t slot_of(int32_t state, int32_t token) const;
    void grow_table();
    int32_t split(int32_t state, int32_t token, int32_t target);
    void extend(int32_t token);
    bool breaks() const;
    bool is_single_breaker(int32_t token) const;

    std::vector<int32_t> tokens_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_; // open addressing over edges_; -1: free
    int32_t whole_ = 0;          // the state of the whole sequence

    int32_t longest_;
    int32_t suffix_ = 0; // state of the last `suffix_length_` tokens, which a match may span
    int32_t suffix_length_ = 0;

    std::vector<int32_t> single_breakers_; // ascending
    // breakers with a tail, by the last token of the tail
    std::unordered_map<int32_t, std::vector<Breaker>> breakers_by_last_;
};

} // namespace penstock::cpu
