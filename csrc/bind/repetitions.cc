// Repetitions: what DRY must know of a sequence.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "bind/bindings.h"
#include "cpu/sampling_repetitions.h"

namespace penstock::bind {
namespace {

namespace py = pybind11;
using cpu::Repetitions;
using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

Repetitions make(const std::vector<cpu::TokenSequence>& breakers, int32_t longest) {
    const auto empty = [](const cpu::TokenSequence& breaker) { return breaker.empty(); };
    if (std::any_of(breakers.begin(), breakers.end(), empty)) {
        throw std::invalid_argument("breakers: one is empty");
    }
    if (longest < 1) {
        throw std::invalid_argument("longest: must be at least 1");
    }
    return {breakers, longest};
}

void extend(Repetitions& repetitions, const Ints& tokens) {
    const auto values = tokens.unchecked<1>();
    for (py::ssize_t i = 0; i < values.shape(0); ++i) {
        repetitions.append(values(i));
    }
}

std::pair<Ints, Ints> matches(const Repetitions& repetitions, int32_t least) {
    if (least < 1) {
        throw std::invalid_argument("least: must be at least 1");
    }
    const auto found = repetitions.matches(least);
    const auto count = static_cast<py::ssize_t>(found.size());
    Ints tokens(count), lengths(count);
    for (py::ssize_t i = 0; i < count; ++i) {
        tokens.mutable_at(i) = found[static_cast<size_t>(i)].token;
        lengths.mutable_at(i) = found[static_cast<size_t>(i)].length;
    }
    return {tokens, lengths};
}

} // namespace

void bind_repetitions(py::module_& module) {
    py::class_<Repetitions>(module, "Repetitions")
        .def(py::init(&make), py::arg("breakers"), py::arg("longest"))
        .def("append", &Repetitions::append, py::arg("token"))
        .def("extend", &extend, py::arg("tokens"))
        .def("matches", &matches, py::arg("least"));
}

} // namespace penstock::bind
