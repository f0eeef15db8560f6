#include "cpu/arithmetic.h"

#include <algorithm>
#include <span>

namespace penstock::cpu {
namespace {

constexpr std::string_view kFamilies[] = {"affine", "dense", "experts", "attention", "other"};

// The scalar level rounds a multiply-add twice.
bool fuses(Level level) {
    return level != Level::scalar;
}

bool same_minima(Level a, Level b) {
    return has_bf16_tiles(a) == has_bf16_tiles(b);
}

bool same_bf16(Level a, Level b) {
    return has_bf16_tiles(a) == has_bf16_tiles(b) && has_bf16_pairs(a) == has_bf16_pairs(b);
}

std::span<const PanelPart> parts_of(const LinearPanels& panels) {
    return {panels.parts, static_cast<size_t>(panels.num_parts)};
}

} // namespace

Family family_of(std::string_view kernel) {
    if (kernel == "quantize_rows" || kernel == "linear_affine")
        return Family::affine;
    if (kernel == "linear_dense")
        return Family::dense;
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

bool same_affine(const LinearPanels& panels, Level a, Level b) {
    const auto parts = parts_of(panels);
    return fuses(a) == fuses(b) &&
           std::all_of(parts.begin(), parts.end(), [&](const PanelPart& part) {
               if (!is_affine(part.encoding))
                   return true;
               if (part.scale_form == ScaleForm::paired)
                   return has_paired_scales(a) && has_paired_scales(b);
               return !part.stored_minimum || part.group != kUnit || same_minima(a, b);
           });
}

bool same_dense(const LinearPanels& panels, Level a, Level b) {
    const auto parts = parts_of(panels);
    return fuses(a) == fuses(b) &&
           std::all_of(parts.begin(), parts.end(), [&](const PanelPart& part) {
               return part.encoding != Encoding::dense_bf16 || same_bf16(a, b);
           });
}

bool same_attention(bool shared_halves, Level a, Level b) {
    return same_other(a, b) && (!shared_halves || same_bf16(a, b));
}

bool same_other(Level a, Level b) {
    return fuses(a) == fuses(b) && lanes(a) == lanes(b);
}

} // namespace penstock::cpu
