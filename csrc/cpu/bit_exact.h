// Decides which ISAs give the same bits for a call. Depends on the standard library only.
//
// All ISAs add in the same order wherever their instructions allow it; this file lists the
// exceptions. An ISA may serve a call in place of another if both give the same bits, which implies
// that both read the same packed weights.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "cpu/isa/isa.h"
#include "cpu/pack/packed_tile.h"

namespace penstock::cpu {

// Groups of kernels that use the same ISA. `affine`: quantize_rows and linear_affine, since
// linear_affine reads the rows that quantize_rows writes. `prompts`: round_rows and linear_prompt,
// for the same reason.
enum class Family : uint8_t { affine, dense, experts, attention, other, prompts };
constexpr size_t kNumFamilies = 6;

Family family_of(std::string_view kernel);

// Returns the family with this name ("affine", "dense", ...); nullopt for another name.
std::optional<Family> family_named(std::string_view name);

// Returns whether `a` and `b` give the same bits for the affine parts of a layer. ISAs differ in
// FMA, in paired scales, and in minima multiplied by tiles.
bool affine_bit_exact(const LinearWeights& packed_tiles, Isa a, Isa b);

// Returns whether `a` and `b` give the same bits for the dense parts of a layer. ISAs differ in
// FMA, for bf16 weights in pairs and tiles, and for int16 weights, which few can read.
bool dense_bit_exact(const LinearWeights& packed_tiles, Isa a, Isa b);

// Returns whether `a` and `b` give the same bits for attention. ISAs differ as in all other
// kernels, and with `shared_halves` (a float16 cache, and several query heads per KV head) also in
// bf16 products.
bool attention_bit_exact(bool shared_halves, Isa a, Isa b);

// Returns whether `a` and `b` give the same bits for the affine parts of a layer, multiplied in
// bf16 tiles, which few ISAs have.
bool prompts_bit_exact(Isa a, Isa b);

// Returns whether `a` and `b` give the same bits in all other kernels. ISAs differ in FMA, and in
// the number of lanes that hold partial sums.
bool other_bit_exact(Isa a, Isa b);

} // namespace penstock::cpu
