// Python binding of PackedExperts.
#include "bind/packed_experts.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "bind/bindings.h"

namespace penstock::bind {
namespace {

cpu::ExpertLayer layer_of(const PackedWeights& packed, int64_t parts_each,
                          std::vector<cpu::PackedMatrix>& parts) {
    cpu::ExpertLayer layer;
    layer.packed_tiles = *packed.linear.packed_tiles();
    layer.parts_each = parts_each;
    layer.affine = packed.linear.has_affine();
    layer.dense = packed.linear.has_dense();
    parts.assign(layer.packed_tiles.parts, layer.packed_tiles.parts + layer.packed_tiles.num_parts);
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].rows != parts[0].rows) {
            throw std::invalid_argument("experts: all matrices must have the same number of rows");
        }
        parts[i].column = static_cast<int64_t>(i) % parts_each * parts[i].rows;
    }
    layer.packed_tiles.parts = parts.data();
    layer.packed_tiles.rows = parts_each * parts[0].rows;
    return layer;
}

cpu::ExpertActivation activation_named(const std::string& name) {
    using Activation = cpu::ExpertActivation;
    constexpr std::pair<const char*, Activation> kNames[] = {
        {"silu", Activation::silu},
        {"gelu_tanh", Activation::gelu_tanh},
        {"relu_squared", Activation::relu_squared},
        {"swiglu_oai", Activation::swiglu_oai}};
    for (const auto& [known, activation] : kNames) {
        if (name == known)
            return activation;
    }
    throw std::invalid_argument("experts: activation: must be silu, gelu_tanh, relu_squared or "
                                "swiglu_oai, got " +
                                name);
}

bool scales_input(const std::string& scaled) {
    if (scaled != "output" && scaled != "input")
        throw std::invalid_argument("experts: shares_scale: must be output or input, got " +
                                    scaled);
    return scaled == "input";
}

int64_t row_bytes_of(const cpu::ExpertLayer& layer) {
    return cpu::expert_row_bytes(layer.affine, layer.dense, layer.packed_tiles.depth);
}

} // namespace

PackedExperts::PackedExperts(std::shared_ptr<PackedWeights> gate_up,
                             std::shared_ptr<PackedWeights> down, cpu::ExpertActivation activation,
                             bool scales_input)
    : gate_up_(std::move(gate_up)), down_(std::move(down)) {
    packed_tiles_.activation = activation;
    packed_tiles_.scales_input = scales_input;
    packed_tiles_.down = layer_of(*down_, 1, down_parts_);
    packed_tiles_.count = packed_tiles_.down.packed_tiles.num_parts;
    const bool gated = gate_up_->linear.packed_tiles()->num_parts > packed_tiles_.count;
    const int64_t parts_each = gated ? 2 : 1;
    packed_tiles_.gate_up = layer_of(*gate_up_, parts_each, gate_up_parts_);
    const cpu::LinearWeights& first = packed_tiles_.gate_up.packed_tiles;
    const cpu::LinearWeights& second = packed_tiles_.down.packed_tiles;
    const bool alike = first.num_parts == parts_each * packed_tiles_.count &&
                       first.rows == parts_each * second.depth && second.rows == first.depth;
    if (!alike || gate_up_->isa != down_->isa) {
        throw std::invalid_argument("experts: gate and up must be [F, W], and down [W, F]");
    }
    if (!gated && activation == cpu::ExpertActivation::swiglu_oai) {
        throw std::invalid_argument("experts: activation: swiglu_oai needs gates");
    }
}

int64_t PackedExperts::row_bytes() const {
    return row_bytes_of(packed_tiles_.gate_up);
}

int64_t PackedExperts::inner_bytes() const {
    return row_bytes_of(packed_tiles_.down);
}

size_t PackedExperts::size_bytes() const {
    return gate_up_->linear.size_bytes() + down_->linear.size_bytes();
}

void bind_experts(pybind11::module_& module) {
    namespace py = pybind11;
    py::class_<PackedExperts, std::shared_ptr<PackedExperts>>(module, "PackedExperts")
        .def(
            py::init([](std::shared_ptr<PackedWeights> gate_up, std::shared_ptr<PackedWeights> down,
                        const std::string& activation, const std::string& shares_scale) {
                return std::make_shared<PackedExperts>(std::move(gate_up), std::move(down),
                                                       activation_named(activation),
                                                       scales_input(shares_scale));
            }),
            py::arg("gate_up"), py::arg("down"), py::arg("activation") = "silu",
            py::arg("shares_scale") = "output")
        .def_property_readonly("shape",
                               [](const PackedExperts& packed) {
                                   const cpu::ExpertWeights& packed_tiles = packed.packed_tiles();
                                   return py::make_tuple(packed_tiles.count,
                                                         packed_tiles.down.packed_tiles.depth,
                                                         packed_tiles.down.packed_tiles.rows);
                               })
        .def_property_readonly("row_bytes", &PackedExperts::row_bytes)
        .def_property_readonly("inner_bytes", &PackedExperts::inner_bytes)
        .def_property_readonly("size_bytes", &PackedExperts::size_bytes);
}

} // namespace penstock::bind
