// Python binding of PackedExperts.
#include "bind/packed_experts.h"

#include <stdexcept>
#include <string>

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
    if (name == "silu")
        return cpu::ExpertActivation::silu;
    if (name == "swiglu_oai")
        return cpu::ExpertActivation::swiglu_oai;
    throw std::invalid_argument("experts: activation: must be silu or swiglu_oai, got " + name);
}

int64_t row_bytes_of(const cpu::ExpertLayer& layer) {
    return cpu::expert_row_bytes(layer.affine, layer.dense, layer.packed_tiles.depth);
}

} // namespace

PackedExperts::PackedExperts(std::shared_ptr<PackedWeights> gate_up,
                             std::shared_ptr<PackedWeights> down, cpu::ExpertActivation activation)
    : gate_up_(std::move(gate_up)), down_(std::move(down)) {
    packed_tiles_.activation = activation;
    packed_tiles_.gate_up = layer_of(*gate_up_, 2, gate_up_parts_);
    packed_tiles_.down = layer_of(*down_, 1, down_parts_);
    packed_tiles_.count = packed_tiles_.down.packed_tiles.num_parts;
    const bool alike =
        packed_tiles_.gate_up.packed_tiles.num_parts == 2 * packed_tiles_.count &&
        packed_tiles_.gate_up.packed_tiles.rows == 2 * packed_tiles_.down.packed_tiles.depth &&
        packed_tiles_.down.packed_tiles.rows == packed_tiles_.gate_up.packed_tiles.depth;
    if (!alike || gate_up_->isa != down_->isa) {
        throw std::invalid_argument("experts: gate and up must be [F, W], and down [W, F]");
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
        .def(py::init([](std::shared_ptr<PackedWeights> gate_up,
                         std::shared_ptr<PackedWeights> down, const std::string& activation) {
                 return std::make_shared<PackedExperts>(std::move(gate_up), std::move(down),
                                                        activation_named(activation));
             }),
             py::arg("gate_up"), py::arg("down"), py::arg("activation") = "silu")
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
