#include "cpu/bit_exact.h"

#include <algorithm>
#include <span>

namespace penstock::cpu {
namespace {

constexpr std::string_view kFamilies[kNumFamilies] = {"affine",    "dense", "experts",
                                                      "attention", "other", "prompts"};

// Returns whether the ISA rounds a multiply-add once. The scalar ISA rounds it twice.
bool uses_fma(Isa isa) {
    return isa != Isa::scalar;
}

bool minima_bit_exact(Isa a, Isa b) {
    return has_bf16_tiles(a) == has_bf16_tiles(b);
}

bool bf16_bit_exact(Isa a, Isa b) {
    return has_bf16_tiles(a) == has_bf16_tiles(b) && has_bf16_pairs(a) == has_bf16_pairs(b);
}

std::span<const PackedMatrix> parts_of(const LinearWeights& packed_tiles) {
    return {packed_tiles.parts, static_cast<size_t>(packed_tiles.num_parts)};
}

} // namespace

Family family_of(std::string_view kernel) {
    if (kernel == "quantize_rows" || kernel == "linear_affine")
        return Family::affine;
    if (kernel == "linear_dense" || kernel == "head_linear" || kernel == "latent_query")
        return Family::dense;
    if (kernel == "round_rows" || kernel == "linear_prompt")
        return Family::prompts;
    if (kernel == "experts")
        return Family::experts;
    return kernel.ends_with("_attention") ? Family::attention : Family::other;
}

std::optional<Family> family_named(std::string_view name) {
    const auto* found = std::find(std::begin(kFamilies), std::end(kFamilies), name);
    if (found == std::end(kFamilies))
        return std::nullopt;
    return static_cast<Family>(found - std::begin(kFamilies));
}

bool affine_bit_exact(const LinearWeights& packed_tiles, Isa a, Isa b) {
    const auto parts = parts_of(packed_tiles);
    return uses_fma(a) == uses_fma(b) &&
           std::all_of(parts.begin(), parts.end(), [&](const PackedMatrix& part) {
               if (!is_affine(part.encoding))
                   return true;
               if (part.scale_form == ScaleForm::paired)
                   return has_paired_scales(a) && has_paired_scales(b);
               return !part.stored_minimum || part.group != kUnit || minima_bit_exact(a, b);
           });
}

bool dense_bit_exact(const LinearWeights& packed_tiles, Isa a, Isa b) {
    const auto parts = parts_of(packed_tiles);
    return uses_fma(a) == uses_fma(b) &&
           std::all_of(parts.begin(), parts.end(), [&](const PackedMatrix& part) {
               if (part.encoding == Encoding::dense_i16)
                   return has_int16_products(a) && has_int16_products(b);
               return part.encoding != Encoding::dense_bf16 || bf16_bit_exact(a, b);
           });
}

bool attention_bit_exact(bool shared_halves, Isa a, Isa b) {
    return other_bit_exact(a, b) && (!shared_halves || bf16_bit_exact(a, b));
}

bool prompts_bit_exact(Isa a, Isa b) {
    return has_bf16_tiles(a) && has_bf16_tiles(b);
}

bool other_bit_exact(Isa a, Isa b) {
    return uses_fma(a) == uses_fma(b) && lanes(a) == lanes(b);
}

} // namespace penstock::cpu
