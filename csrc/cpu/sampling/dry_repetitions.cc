#include "cpu/sampling/dry_repetitions.h"

#include <algorithm>
#include <utility>

namespace penstock::cpu {
namespace {

// Appends a value, and grows the vector by less than std::vector would.
template <class T>
void push(std::vector<T>& values, const T& value) {
    if (values.size() == values.capacity()) {
        values.reserve(values.size() + values.size() / 4 + 16);
    }
    values.push_back(value);
}

} // namespace

DryRepetitions::DryRepetitions(std::vector<Breaker> breakers, int32_t longest)
    : table_(64, -1), longest_(longest) {
    add_state(0, -1);
    for (Breaker& breaker : breakers) {
        if (breaker.tail.empty()) {
            single_breakers_.insert(single_breakers_.end(), breaker.heads.begin(),
                                    breaker.heads.end());
        } else {
            breakers_by_last_[breaker.tail.back()].push_back(std::move(breaker));
        }
    }
    std::sort(single_breakers_.begin(), single_breakers_.end());
}

void DryRepetitions::append(int32_t token) {
    push(tokens_, token);
    extend(token);
    if (breaks()) {
        suffix_ = suffix_length_ = 0;
        return;
    }
    suffix_ = edges_[static_cast<size_t>(find_edge(suffix_, token))].target;
    suffix_length_ = std::min(suffix_length_ + 1, longest_);
    for (;;) {
        const int32_t shorter = states_[static_cast<size_t>(suffix_)].link;
        if (shorter < 0 || states_[static_cast<size_t>(shorter)].length < suffix_length_) {
            return;
        }
        suffix_ = shorter;
    }
}

std::vector<DryRepetitions::Match> DryRepetitions::matches(int32_t least) const {
    std::vector<Match> found;
    int32_t length = suffix_length_;
    // A token that follows a string also follows its suffixes. A state with as many edges as the
    // previous state therefore adds no token.
    int32_t known_edges = 0;
    for (int32_t at = suffix_; at > 0 && length >= least;) {
        const State& state = states_[static_cast<size_t>(at)];
        if (state.num_edges > known_edges) {
            known_edges = state.num_edges;
            for (int32_t e = state.first_edge; e >= 0; e = edges_[static_cast<size_t>(e)].next) {
                const int32_t token = edges_[static_cast<size_t>(e)].token;
                if (!is_single_breaker(token)) {
                    found.push_back({token, length});
                }
            }
        }
        at = state.link;
        length = states_[static_cast<size_t>(at)].length;
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Match& a, const Match& b) { return a.token < b.token; });
    const auto same = [](const Match& a, const Match& b) { return a.token == b.token; };
    found.erase(std::unique(found.begin(), found.end(), same), found.end());
    return found;
}

size_t DryRepetitions::size_bytes() const {
    return tokens_.capacity() * sizeof(int32_t) + states_.capacity() * sizeof(State) +
           edges_.capacity() * sizeof(Edge) + table_.capacity() * sizeof(int32_t);
}

void DryRepetitions::extend(int32_t token) {
    const int32_t added = add_state(states_[static_cast<size_t>(whole_)].length + 1, 0);
    int32_t at = whole_;
    int32_t edge = -1;
    while (at >= 0 && (edge = find_edge(at, token)) < 0) {
        add_edge(at, token, added);
        at = states_[static_cast<size_t>(at)].link;
    }
    if (at >= 0) {
        const int32_t target = edges_[static_cast<size_t>(edge)].target;
        const bool fits = states_[static_cast<size_t>(target)].length ==
                          states_[static_cast<size_t>(at)].length + 1;
        states_[static_cast<size_t>(added)].link = fits ? target : split(at, token, target);
    }
    whole_ = added;
}

// Moves the strings of `target` that are no longer than the strings of `state` plus `token` to a
// new state, and returns it.
int32_t DryRepetitions::split(int32_t state, int32_t token, int32_t target) {
    const State old = states_[static_cast<size_t>(target)];
    const int32_t shorter = add_state(states_[static_cast<size_t>(state)].length + 1, old.link);
    for (int32_t e = old.first_edge; e >= 0; e = edges_[static_cast<size_t>(e)].next) {
        add_edge(shorter, edges_[static_cast<size_t>(e)].token,
                 edges_[static_cast<size_t>(e)].target);
    }
    states_[static_cast<size_t>(target)].link = shorter;
    for (int32_t at = state; at >= 0; at = states_[static_cast<size_t>(at)].link) {
        Edge& edge = edges_[static_cast<size_t>(find_edge(at, token))];
        if (edge.target != target) {
            break;
        }
        edge.target = shorter;
    }
    return shorter;
}

int32_t DryRepetitions::add_state(int32_t length, int32_t link) {
    push(states_, State{length, link, -1, 0});
    return static_cast<int32_t>(states_.size()) - 1;
}

void DryRepetitions::add_edge(int32_t state, int32_t token, int32_t target) {
    if (2 * (edges_.size() + 1) > table_.size()) {
        grow_table();
    }
    State& from = states_[static_cast<size_t>(state)];
    const auto index = static_cast<int32_t>(edges_.size());
    push(edges_, Edge{state, token, target, from.first_edge});
    from.first_edge = index;
    ++from.num_edges;
    table_[slot_of(state, token)] = index;
}

int32_t DryRepetitions::find_edge(int32_t state, int32_t token) const {
    return table_[slot_of(state, token)];
}

// Returns the slot of the edge, or a free slot for it.
size_t DryRepetitions::slot_of(int32_t state, int32_t token) const {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
    const size_t mask = table_.size() - 1;
    size_t slot = (key * 0x9E3779B97F4A7C15u >> 20) & mask;
    for (;; slot = (slot + 1) & mask) {
        if (table_[slot] < 0) {
            return slot;
        }
        const Edge& edge = edges_[static_cast<size_t>(table_[slot])];
        if (edge.state == state && edge.token == token) {
            return slot;
        }
    }
}

void DryRepetitions::grow_table() {
    table_.assign(2 * table_.size(), -1);
    for (size_t i = 0; i < edges_.size(); ++i) {
        table_[slot_of(edges_[i].state, edges_[i].token)] = static_cast<int32_t>(i);
    }
}

bool DryRepetitions::is_single_breaker(int32_t token) const {
    return std::binary_search(single_breakers_.begin(), single_breakers_.end(), token);
}

// Returns whether the sequence ends with a breaker.
bool DryRepetitions::breaks() const {
    if (is_single_breaker(tokens_.back())) {
        return true;
    }
    const auto candidates = breakers_by_last_.find(tokens_.back());
    if (candidates == breakers_by_last_.end()) {
        return false;
    }
    const auto ends_here = [&](const Breaker& breaker) {
        const auto& [heads, tail] = breaker;
        return tail.size() < tokens_.size() &&
               std::equal(tail.rbegin(), tail.rend(), tokens_.rbegin()) &&
               std::binary_search(heads.begin(), heads.end(),
                                  tokens_[tokens_.size() - tail.size() - 1]);
    };
    return std::any_of(candidates->second.begin(), candidates->second.end(), ends_here);
}

} // namespace penstock::cpu
