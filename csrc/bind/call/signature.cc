#include "bind/call/signature.h"

namespace penstock::bind {
namespace {

constexpr DTypes f32 = one_of(DType::f32);
constexpr DTypes i32 = one_of(DType::i32);
constexpr DTypes i64 = one_of(DType::i64);
constexpr DTypes u8 = one_of(DType::u8);
constexpr DTypes cached = one_of(DType::f32) | one_of(DType::f16);
constexpr auto read = Access::read;
constexpr auto write = Access::write;
constexpr auto update = Access::update;

int64_t value(const Symbols& symbols, const char* name) {
    return symbols.evaluate(name).value().value;
}

std::string heads_refusal(const Symbols& symbols, int) {
    const int64_t heads = value(symbols, "H"), kv_heads = value(symbols, "K");
    if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
        return "H: must be a positive multiple of K";
    }
    if (const int64_t dim = value(symbols, "D"); dim < 8 || dim > 1024 || dim % 8 != 0) {
        return "D: must be a multiple of 8 from 8 to 1024";
    }
    return {};
}

std::string rope_refusal(const Symbols& symbols, int lanes) {
    const int64_t rotated = value(symbols, "rotated");
    if (rotated % 2 != 0 || rotated > value(symbols, "D")) {
        return "rope: its rows must be even and no longer than D";
    }
    return heads_refusal(symbols, lanes);
}

std::string attention_refusal(const Symbols& symbols, int lanes) {
    const int64_t block = value(symbols, "P");
    if (block < 1 || block % lanes != 0 || (block % 64 != 0 && 64 % block != 0)) {
        return "P: must be a multiple of " + std::to_string(lanes) +
               " that divides 64 or is a multiple of it";
    }
    if (value(symbols, "window") < 0) {
        return "window: must not be negative";
    }
    return heads_refusal(symbols, lanes);
}

std::string biased_attention_refusal(const Symbols& symbols, int lanes) {
    if (value(symbols, "distances") % 2 == 0) {
        return "bias: its rows must be odd: as many distances back as ahead";
    }
    return attention_refusal(symbols, lanes);
}

std::string mask_refusal(const Symbols& symbols, int) {
    const int64_t needed = (value(symbols, "V") + 31) / 32;
    if (value(symbols, "words") != needed) {
        return "masks: needs " + std::to_string(needed) + " words of 32 tokens";
    }
    return {};
}

std::vector<Parameter> rope_cache_tensors(std::vector<Parameter> head_norm = {}) {
    std::vector<Parameter> tensors{{"qkv", read, f32, {"T", "H*D+2*K*D"}, ""},
                                   {"rope", read, f32, {"positions", "rotated"}, ""},
                                   {"positions", read, i32, {"T"}, "positions"},
                                   {"slots", read, i32, {"T"}, "B*P"},
                                   {"keys", update, cached, {"B", "K", "D", "P"}, ""},
                                   {"values", update, cached, {"B", "K", "P", "D"}, ""},
                                   {"out", write, f32, {"T", "H*D"}, ""}};
    tensors.insert(tensors.end(), head_norm.begin(), head_norm.end());
    return tensors;
}

std::vector<Parameter> attention_tensors(const std::vector<Parameter>& own = {}) {
    std::vector<Parameter> tensors{{"q", read, f32, {"T", "H*D"}, ""},
                                   {"query_starts", read, i32, {"R+1"}, ""},
                                   {"context_lens", read, i32, {"R"}, ""},
                                   {"block_tables", read, i32, {"R", "max_blocks"}, ""},
                                   {"keys", read, cached, {"B", "K", "D", "P"}, ""},
                                   {"values", read, cached, {"B", "K", "P", "D"}, ""},
                                   {"out", write, f32, {"T", "H*D"}, ""}};
    tensors.insert(tensors.end(), own.begin(), own.end());
    return tensors;
}

std::vector<Parameter> gated_tensors() {
    return {{"gate_up", read, f32, {"T", "2*F"}, ""}, {"out", write, f32, {"T", "F"}, ""}};
}

std::vector<Parameter> plain_tensors() {
    return {{"x", read, f32, {"T", "F"}, ""}, {"out", write, f32, {"T", "F"}, ""}};
}

// `K`, `N`, `V` and `Z` of a packed_linear: its depth, its rows (as N and as V), and the bytes of
// a quantized row of that depth. `E`, `F`, `W`, `X` and `Y` of packed_experts: how many, their
// sizes, and the bytes of a prepared row of W, and of F, numbers. `K`, `N` and `H` of
// adapter_slots: those of the layer `linear`, and the columns of its scratch.
const std::vector<Signature>& table() {
    static const std::vector<Signature> signatures{
        {"rms_norm",
         {{"x", read, f32, {"T", "W"}, ""},
          {"weight", read, f32, {"W"}, ""},
          {"out", write, f32, {"T", "W"}, ""}},
         {},
         {"eps"}},
        {"add_rms_norm",
         {{"x", read, f32, {"T", "W"}, ""},
          {"residual", read, f32, {"T", "W"}, ""},
          {"weight", read, f32, {"W"}, ""},
          {"out", write, f32, {"T", "W"}, ""},
          {"sum", write, f32, {"T", "W"}, ""}},
         {},
         {"eps"}},
        {"layer_norm",
         {{"x", read, f32, {"T", "W"}, ""},
          {"weight", read, f32, {"W"}, ""},
          {"bias", read, f32, {"W"}, ""},
          {"out", write, f32, {"T", "W"}, ""}},
         {},
         {"eps"}},
        {"add_layer_norm",
         {{"x", read, f32, {"T", "W"}, ""},
          {"residual", read, f32, {"T", "W"}, ""},
          {"weight", read, f32, {"W"}, ""},
          {"bias", read, f32, {"W"}, ""},
          {"out", write, f32, {"T", "W"}, ""},
          {"sum", write, f32, {"T", "W"}, ""}},
         {},
         {"eps"}},
        {"silu_mul", gated_tensors(), {}, {}},
        {"gelu_mul", gated_tensors(), {}, {}},
        {"gelu_tanh_mul", gated_tensors(), {}, {}},
        {"gelu", plain_tensors(), {}, {}},
        {"tanh", plain_tensors(), {}, {}},
        {"mean_rows",
         {{"x", read, f32, {"T", "W"}, ""},
          {"starts", read, i32, {"R+1"}, "", "T"},
          {"out", write, f32, {"R", "W"}, ""}},
         {},
         {}},
        {"l2_normalize",
         {{"x", read, f32, {"R", "W"}, ""}, {"out", write, f32, {"R", "W"}, ""}},
         {},
         {}},
        {"gather_rows",
         {{"x", read, f32, {"T", "W"}, ""},
          {"rows", read, i32, {"S"}, "T"},
          {"out", write, f32, {"S", "W"}, ""}},
         {},
         {}},
        {"embedding",
         {{"tokens", read, i32, {"T"}, "V"}, {"out", write, f32, {"T", "K"}, ""}},
         {},
         {"scale"},
         ObjectKind::packed_rows},
        {"quantize_rows",
         {{"x", read, f32, {"T", "K"}, ""}, {"out", write, u8, {"T", "Z"}, ""}},
         {},
         {},
         ObjectKind::packed_linear},
        {"linear_affine",
         {{"x", read, u8, {"T", "Z"}, ""}, {"out", write, f32, {"T", "N"}, ""}},
         {"threads"},
         {},
         ObjectKind::packed_linear},
        {"linear_dense",
         {{"x", read, f32, {"T", "K"}, ""}, {"out", write, f32, {"T", "N"}, ""}},
         {"threads"},
         {},
         ObjectKind::packed_linear},
        {"route_experts",
         {{"logits", read, f32, {"T", "E"}, ""},
          {"chosen", write, i32, {"T", "C"}, "E"},
          {"shares", write, f32, {"T", "C"}, ""}},
         {"renormalize"},
         {},
         ObjectKind::none,
         [](const Symbols& symbols, int) {
             return std::string(value(symbols, "C") > value(symbols, "E") ? "C: exceeds E" : "");
         }},
        {"experts",
         {{"x", read, f32, {"T", "W"}, ""},
          {"chosen", read, i32, {"T", "C"}, "E"},
          {"shares", read, f32, {"T", "C"}, ""},
          {"out", write, f32, {"T", "W"}, ""},
          {"rows", write, u8, {"T", "C*X"}, ""},
          {"gate_up", write, f32, {"T", "2*C*F"}, ""},
          {"inner", write, u8, {"T", "C*Y"}, ""},
          {"y", write, f32, {"T", "C*W"}, ""},
          {"lists", write, i32, {"T", "4*C"}, ""},
          {"counts", write, i32, {"E+1"}, ""}},
         {"threads"},
         {},
         ObjectKind::packed_experts},
        {"lora",
         {{"x", read, f32, {"T", "K"}, ""},
          {"y", update, f32, {"T", "N"}, ""},
          {"order", read, i32, {"T"}, ""},
          {"starts", read, i32, {"R+1"}, ""},
          {"slots", read, i32, {"R"}, ""},
          {"inner", write, f32, {"T", "H"}, ""}},
         {"linear", "threads"},
         {},
         ObjectKind::adapter_slots},
        {"rope_cache", rope_cache_tensors(), {"H", "K", "D"}, {}, ObjectKind::none, rope_refusal},
        {"norm_rope_cache",
         rope_cache_tensors(
             {{"q_weight", read, f32, {"D"}, ""}, {"k_weight", read, f32, {"D"}, ""}}),
         {"H", "K", "D"},
         {"eps"},
         ObjectKind::none,
         rope_refusal},
        {"paged_attention",
         attention_tensors({{"partials", write, f32, {"partials"}, ""}}),
         {"H", "K", "D", "window"},
         {"scale"},
         ObjectKind::none,
         attention_refusal},
        {"sink_attention",
         attention_tensors(
             {{"partials", write, f32, {"partials"}, ""}, {"sinks", read, f32, {"H"}, ""}}),
         {"H", "K", "D", "window"},
         {"scale"},
         ObjectKind::none,
         attention_refusal},
        {"bidirectional_attention",
         attention_tensors(),
         {"H", "K", "D", "window"},
         {"scale"},
         ObjectKind::none,
         attention_refusal},
        {"biased_attention",
         attention_tensors({{"bias", read, f32, {"H", "distances"}, ""}}),
         {"H", "K", "D", "window"},
         {"scale"},
         ObjectKind::none,
         biased_attention_refusal},
        {"adjust_logits",
         {{"logits", update, f32, {"S", "V"}, ""},
          {"bias_starts", read, i32, {"S+1"}, "", "biased"},
          {"bias_tokens", read, i32, {"biased"}, "V"},
          {"bias_values", read, f32, {"biased"}, ""},
          {"seen_starts", read, i32, {"S+1"}, "", "seen"},
          {"seen_tokens", read, i32, {"seen"}, "V"},
          {"seen_counts", read, i32, {"seen"}, ""},
          {"presence", read, f32, {"S"}, ""},
          {"frequency", read, f32, {"S"}, ""},
          {"repetition", read, f32, {"S"}, ""},
          {"dry_starts", read, i32, {"S+1"}, "", "dried"},
          {"dry_tokens", read, i32, {"dried"}, "V"},
          {"dry_values", read, f32, {"dried"}, ""},
          {"masks", read, i32, {"M", "words"}, ""},
          {"mask", read, i32, {"S"}, "M+1"},
          {"barren", write, i32, {"S"}, ""}},
         {},
         {},
         ObjectKind::none,
         mask_refusal},
        {"argmax", {{"logits", read, f32, {"S", "V"}, ""}, {"out", write, i32, {"S"}, ""}}, {}, {}},
        {"sample",
         {{"logits", read, f32, {"S", "V"}, ""},
          {"temperature", read, f32, {"S"}, ""},
          {"top_k", read, i32, {"S"}, ""},
          {"top_p", read, f32, {"S"}, ""},
          {"min_p", read, f32, {"S"}, ""},
          {"seed", read, i64, {"S"}, ""},
          {"position", read, i64, {"S"}, ""},
          {"out", write, i32, {"S"}, ""}},
         {},
         {}},
        {"top_logprobs",
         {{"logits", read, f32, {"S", "V"}, ""},
          {"rows", read, i32, {"R"}, "S"},
          {"tokens", read, i32, {"R"}, "V"},
          {"out", write, f32, {"R"}, ""},
          {"ids", write, i32, {"R", "count"}, ""},
          {"logprobs", write, f32, {"R", "count"}, ""}},
         {},
         {},
         ObjectKind::none,
         [](const Symbols& symbols, int) {
             return std::string(value(symbols, "count") > value(symbols, "V")
                                    ? "count: exceeds the vocabulary"
                                    : "");
         }},
    };
    return signatures;
}

} // namespace

const Signature* signature_of(std::string_view kernel) {
    for (const Signature& signature : table()) {
        if (signature.kernel == kernel) {
            return &signature;
        }
    }
    return nullptr;
}

} // namespace penstock::bind
