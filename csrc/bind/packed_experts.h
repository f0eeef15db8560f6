// The packed experts of a mixture-of-experts layer.
#pragma once

#include <memory>
#include <vector>

#include "bind/kernel_set.h"
#include "cpu/pack/expert_layer.h"

namespace penstock::bind {

class PackedExperts {
  public:
    // `gate_up` holds gate and up of each expert in turn, `down` one part per expert; each may have
    // biases. Throws std::invalid_argument if the parts differ in shape.
    PackedExperts(std::shared_ptr<PackedWeights> gate_up, std::shared_ptr<PackedWeights> down,
                  cpu::ExpertActivation activation);

    PackedExperts(const PackedExperts&) = delete;
    PackedExperts& operator=(const PackedExperts&) = delete;

    const cpu::ExpertWeights& packed_tiles() const { return packed_tiles_; }
    cpu::Isa isa() const { return gate_up_->isa; }
    int64_t row_bytes() const;   // of one quantized row of x
    int64_t inner_bytes() const; // of one row between the two layers
    size_t size_bytes() const;

  private:
    std::shared_ptr<PackedWeights> gate_up_;
    std::shared_ptr<PackedWeights> down_;
    // parts of the layers, if they differ in columns
    std::vector<cpu::PackedMatrix> gate_up_parts_;
    std::vector<cpu::PackedMatrix> down_parts_;
    cpu::ExpertWeights packed_tiles_;
};

} // namespace penstock::bind
