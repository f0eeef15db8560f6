// The ISAs that give the same bits for a call. Standard library only.
//
// Every ISA adds in the same order wherever the instructions let it; the differences are listed
// here. An ISA may serve a call in place of another one if they agree, and if both read the same
// packed weights, which follows from it.
#pragma once

#include <optional>
#include <string_view>

#include "cpu/isa/isa.h"
#include "cpu/pack/packed_tile.h"

namespace penstock::cpu {

// Kernels whose ISA is chosen together. `affine`: quantize_rows and linear_affine, since the one
// writes what the other reads.
enum class Family : uint8_t { affine, dense, experts, attention, other };

Family family_of(std::string_view kernel);

// "affine", "dense", "experts", "attention" or "other"; none for another name.
std::optional<Family> family_named(std::string_view name);

// Affine parts of a layer: they differ by paired scales, and by minima that tiles multiply.
bool affine_bit_exact(const LinearWeights& packed_tiles, Isa a, Isa b);

// Dense parts of a layer: they differ for bf16 weights.
bool dense_bit_exact(const LinearWeights& packed_tiles, Isa a, Isa b);

// Attention. `shared_halves`: the cache is float16, and several query heads share a KV head.
bool attention_bit_exact(bool shared_halves, Isa a, Isa b);

// All other kernels: they differ by the lanes that sums are kept in.
bool other_bit_exact(Isa a, Isa b);

} // namespace penstock::cpu
