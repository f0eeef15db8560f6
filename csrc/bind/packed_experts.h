// The packed experts of a mixture-of-experts layer.
#pragma once

#include <memory>
#include <vector>

#include "bind/kernel_set.h"
#include "cpu/pack/expert_layer.h"

namespace penstock::bind {

class PackedExperts {
  public:
    // `gate_up` has two parts per expert, gate and up, or only up; `down` has one. Each may have
    // biases. Throws std::invalid_argument if the parts differ in shape, or if the activation needs
    // gates that are missing.
    PackedExperts(std::shared_ptr<PackedWeights> gate_up, std::shared_ptr<PackedWeights> down,
                  cpu::ExpertActivation activation, bool scales_input);

    PackedExperts(const PackedExperts&) = delete;
    PackedExperts& operator=(const PackedExperts&) = delete;

    const cpu::ExpertWeights& packed_tiles() const { return packed_tiles_; }
    cpu::Isa isa() const { return gate_up_->isa; }
    int64_t row_bytes() const;   // bytes of a quantized row of x
    int64_t inner_bytes() const; // bytes of a quantized row between the two layers
    size_t size_bytes() const;

  private:
    std::shared_ptr<PackedWeights> gate_up_;
    std::shared_ptr<PackedWeights> down_;
    // The parts of the layers, copied so that `column` can be the first column within the expert.
    std::vector<cpu::PackedMatrix> gate_up_parts_;
    std::vector<cpu::PackedMatrix> down_parts_;
    cpu::ExpertWeights packed_tiles_;
};

} // namespace penstock::bind
