// Python bindings of the per-row token state for sampling (counts, DRY matches). One call builds
// the lists of a whole batch: between steps the weights have evicted the processor's caches, so
// Python code per row would cost more than the work itself.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bindings.h"
#include "cpu/sampling/dry_repetitions.h"
#include "cpu/sampling/token_counts.h"

namespace penstock::bind {
namespace {

namespace py = pybind11;
using cpu::DryRepetitions;
using cpu::TokenCounts;
using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Lists = std::tuple<Ints, Ints, Ints>;

std::vector<int32_t> vector_of(const Ints& array) {
    const auto values = array.unchecked<1>();
    std::vector<int32_t> copied(static_cast<size_t>(values.shape(0)));
    for (py::ssize_t i = 0; i < values.shape(0); ++i) {
        copied[static_cast<size_t>(i)] = values(i);
    }
    return copied;
}

DryRepetitions make_repetitions(const std::vector<std::pair<Ints, Ints>>& breakers,
                                int32_t longest) {
    std::vector<cpu::Breaker> given;
    for (const auto& [heads, tail] : breakers) {
        given.push_back({vector_of(heads), vector_of(tail)});
        if (!std::is_sorted(given.back().heads.begin(), given.back().heads.end())) {
            throw std::invalid_argument("breakers: heads must ascend");
        }
    }
    if (longest < 1) {
        throw std::invalid_argument("longest: must be at least 1");
    }
    return {std::move(given), longest};
}

TokenCounts make_counts(const Ints& prompt) {
    TokenCounts counts;
    const auto values = prompt.unchecked<1>();
    for (py::ssize_t i = 0; i < values.shape(0); ++i) {
        counts.see(values(i));
    }
    return counts;
}

template <class State>
void extend(State& state, const Ints& tokens) {
    const auto values = tokens.unchecked<1>();
    for (py::ssize_t i = 0; i < values.shape(0); ++i) {
        state.append(values(i));
    }
}

// Appends tokens[i] to states[i]; skips None states and negative tokens.
template <class State>
void append_each(const py::list& states, const Ints& tokens) {
    const auto values = tokens.unchecked<1>();
    if (py::len(states) != static_cast<size_t>(values.shape(0))) {
        throw std::invalid_argument("tokens: must have one per state");
    }
    for (py::ssize_t i = 0; i < values.shape(0); ++i) {
        const py::handle state = states[static_cast<size_t>(i)];
        if (!state.is_none() && values(i) >= 0) {
            state.cast<State&>().append(values(i));
        }
    }
}

Ints array_of(const std::vector<int32_t>& values) {
    return Ints(static_cast<py::ssize_t>(values.size()), values.data());
}

// Returns (starts of each state, tokens, counts).
Lists count_lists(const py::list& states) {
    std::vector<int32_t> starts{0}, tokens, counts;
    for (const py::handle item : states) {
        if (!item.is_none()) {
            const auto& state = item.cast<const TokenCounts&>();
            tokens.insert(tokens.end(), state.tokens().begin(), state.tokens().end());
            counts.insert(counts.end(), state.counts().begin(), state.counts().end());
        }
        starts.push_back(static_cast<int32_t>(tokens.size()));
    }
    return {array_of(starts), array_of(tokens), array_of(counts)};
}

// Returns (starts of each state, tokens, lengths) of each state's matches of at least least[i]
// tokens.
Lists match_lists(const py::list& states, const Ints& least) {
    const auto leasts = least.unchecked<1>();
    if (py::len(states) != static_cast<size_t>(leasts.shape(0))) {
        throw std::invalid_argument("least: must have one per state");
    }
    std::vector<int32_t> starts{0}, tokens, lengths;
    for (py::ssize_t row = 0; row < leasts.shape(0); ++row) {
        if (leasts(row) < 1) {
            throw std::invalid_argument("least: must be at least 1");
        }
        const py::handle state = states[static_cast<size_t>(row)];
        if (!state.is_none()) {
            for (const auto& match : state.cast<const DryRepetitions&>().matches(leasts(row))) {
                tokens.push_back(match.token);
                lengths.push_back(match.length);
            }
        }
        starts.push_back(static_cast<int32_t>(tokens.size()));
    }
    return {array_of(starts), array_of(tokens), array_of(lengths)};
}

} // namespace

void bind_sampling_state(py::module_& module) {
    py::class_<DryRepetitions>(module, "DryRepetitions")
        .def(py::init(&make_repetitions), py::arg("breakers"), py::arg("longest"))
        .def_readonly_static("bytes_per_token", &DryRepetitions::kBytesPerToken)
        .def_property_readonly("size_bytes", &DryRepetitions::size_bytes)
        .def("extend", &extend<DryRepetitions>, py::arg("tokens"))
        .def_static("append_each", &append_each<DryRepetitions>, py::arg("states"),
                    py::arg("tokens"))
        .def_static("lists", &match_lists, py::arg("states"), py::arg("least"));
    py::class_<TokenCounts>(module, "TokenCounts")
        .def(py::init(&make_counts), py::arg("prompt"))
        .def("extend", &extend<TokenCounts>, py::arg("tokens"))
        .def_static("append_each", &append_each<TokenCounts>, py::arg("states"), py::arg("tokens"))
        .def_static("lists", &count_lists, py::arg("states"));
}

} // namespace penstock::bind
