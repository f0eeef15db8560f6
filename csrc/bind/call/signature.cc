#include "bind/call/signature.h"

#include <cassert>

#include "bind/call/latent_signatures.h"
#include "bind/call/operand.h"
#include "bind/call/recurrent_signatures.h"

namespace penstock::bind {
namespace {

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
        return "rope: the length of its rows must be even and at most D";
    }
    return heads_refusal(symbols, lanes);
}

std::string values_refusal(const Symbols& symbols, int lanes) {
    const int64_t dim = value(symbols, "D"), columns = value(symbols, "C");
    const int64_t keys = value(symbols, "H") + value(symbols, "K");
    if (columns != keys * dim && columns != (keys + value(symbols, "K")) * dim) {
        return "x: must have the columns of q and k, or of q, k and v";
    }
    return heads_refusal(symbols, lanes);
}

std::string norm_rope_refusal(const Symbols& symbols, int) {
    const int64_t dim = value(symbols, "D"), rotated = value(symbols, "rotated");
    if (dim < 8 || dim > 1024 || dim % 8 != 0 || value(symbols, "N") % dim != 0) {
        return "D: must be a multiple of 8 from 8 to 1024 that divides N";
    }
    return rotated % 2 != 0 || rotated > dim
               ? "rope: the length of its rows must be even and at most D"
               : "";
}

// A negative window divides positions into chunks.
std::string causal_refusal(const Symbols& symbols, int lanes) {
    const std::string reason = block_refusal(symbols, lanes);
    return reason.empty() ? heads_refusal(symbols, lanes) : reason;
}

std::string attention_refusal(const Symbols& symbols, int lanes) {
    if (value(symbols, "window") < 0) {
        return "window: must not be negative";
    }
    return causal_refusal(symbols, lanes);
}

std::string biased_attention_refusal(const Symbols& symbols, int lanes) {
    if (value(symbols, "distances") % 2 == 0) {
        return "bias: the length of its rows must be odd: as many distances back as ahead";
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

std::string routing_refusal(const Symbols& symbols, int) {
    const int64_t experts = value(symbols, "E"), top_k = value(symbols, "top_k");
    const int64_t groups = value(symbols, "groups"), chosen = value(symbols, "groups_per_token");
    if (top_k > experts) {
        return "top_k: exceeds E";
    }
    if (groups < 1 || experts % groups != 0) {
        return "groups: must divide E";
    }
    if (chosen < 1 || chosen > groups || chosen * (experts / groups) < top_k) {
        return "groups_per_token: must be at most the groups, which must hold top_k experts";
    }
    const int64_t scoring = value(symbols, "scoring");
    if (scoring < 0 || scoring > 2 || (scoring == 2 && top_k != 2)) {
        return "scoring: must be 0, 1 or, with top_k 2, 2";
    }
    return {};
}

std::string columns_refusal(const Symbols& symbols, int) {
    const int64_t columns = value(symbols, "columns"), group = value(symbols, "group");
    const int64_t first = value(symbols, "first");
    if (first < 0 || first > value(symbols, "W") - columns) {
        return "first: the columns must be inside of x";
    }
    return group < 1 || columns % group != 0 ? "group: must divide the columns" : "";
}

std::string count_refusal(const Symbols& symbols, int) {
    return value(symbols, "count") > value(symbols, "V") ? "count: exceeds the vocabulary" : "";
}

// Removes and returns the text of `rest` before the first `separator`, or all of `rest` if there is
// none.
std::string_view cut(std::string_view& rest, std::string_view separator) {
    const size_t at = rest.find(separator);
    const std::string_view head = rest.substr(0, at);
    rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + separator.size());
    return head;
}

DTypes dtypes_named(std::string_view names) {
    DTypes dtypes = 0;
    while (!names.empty()) {
        const std::string_view name = cut(names, "|");
        for (const DType dtype :
             {DType::f32, DType::f16, DType::i32, DType::i64, DType::u8, DType::i8}) {
            dtypes |= dtype_name(dtype) == name ? one_of(dtype) : 0;
        }
    }
    assert(dtypes != 0);
    return dtypes;
}

Parameter tensor_of(std::string_view text) {
    Parameter parameter;
    if (text.starts_with("write ") || text.starts_with("update ")) {
        parameter.access = cut(text, " ") == "write" ? Access::write : Access::update;
    }
    parameter.name = cut(text, " ");
    parameter.dtypes = dtypes_named(cut(text, " ["));
    for (std::string_view extents = cut(text, "]"); !extents.empty();) {
        parameter.extents.emplace_back(cut(extents, ", "));
    }
    if (text.starts_with(" below ")) {
        parameter.or_negative = text.ends_with(" or negative");
        parameter.below = text.substr(7, text.size() - 7 - (parameter.or_negative ? 12 : 0));
    } else if (text.starts_with(" up to ")) {
        parameter.runs_to = text.substr(7);
    } else {
        assert(text.empty());
    }
    return parameter;
}

Signature parsed(std::string kernel, std::string text, ObjectKind object, Refusal* refusal) {
    Signature signature{std::move(kernel), std::move(text), {}, {}, {}, object, refusal};
    for (std::string_view rest = signature.text; !rest.empty();) {
        std::string_view operand = cut(rest, "; ");
        if (operand.starts_with("integer ")) {
            signature.integers.emplace_back(operand.substr(8));
        } else if (operand.starts_with("real ")) {
            signature.reals.emplace_back(operand.substr(5));
        } else {
            signature.tensors.push_back(tensor_of(operand));
        }
    }
    return signature;
}

std::vector<SignatureRow> row_kernels() {
    const std::string gated = "gate_up float32 [T, 2*F]; write out float32 [T, F]";
    const std::string indexed = "x float32 [T, W]; rows float32 [M, W]; "
                                "index int32 [T] below M or negative; write out float32 [T, W]";
    const std::string paired = "x float32 [T, W]; y float32 [T, W]; write out float32 [T, W]";
    const std::string plain = "x float32 [T, F]; write out float32 [T, F]";
    return {
        {"rms_norm", "x float32 [T, W]; weight float32 [W]; write out float32 [T, W]; real eps"},
        {"add_rms_norm", "x float32 [T, W]; residual float32 [T, W]; weight float32 [W]; "
                         "write out float32 [T, W]; write sum float32 [T, W]; real eps"},
        {"layer_norm", "x float32 [T, W]; weight float32 [W]; bias float32 [W]; "
                       "write out float32 [T, W]; real eps"},
        {"add_layer_norm",
         "x float32 [T, W]; residual float32 [T, W]; weight float32 [W]; bias float32 [W]; "
         "write out float32 [T, W]; write sum float32 [T, W]; real eps"},
        {"silu_mul", gated},
        {"gelu_mul", gated},
        {"gelu_tanh_mul", gated},
        {"gelu", plain},
        {"gelu_tanh", plain},
        {"quick_gelu", plain},
        {"silu", plain},
        {"tanh", plain},
        {"mean_rows", "x float32 [T, W]; starts int32 [R+1] up to T; write out float32 [R, W]"},
        {"l2_normalize", "x float32 [R, W]; write out float32 [R, W]"},
        {"replace_rows", indexed},
        {"add_rows", indexed},
        {"mrope_rows", "table float32 [positions, 2*pairs]; time int32 [T] below positions; "
                       "height int32 [T] below positions; width int32 [T] below positions; "
                       "axis int32 [pairs]; write out float32 [T, 2*pairs]"},
        {"multiply", paired},
        {"scaled_sum", paired + "; real scale"},
        {"scale_rows", "x float32 [T, W]; table float32 [positions]; "
                       "index int32 [T] below positions; write out float32 [T, W]"},
        {"soft_cap", plain + "; real cap"},
        {"sparse_gelu_tanh_mul", gated + "; real deviations"},
        {"norm_rope",
         "x float32 [T, N]; weight float32 [D]; rope float32 [positions, rotated]; "
         "positions int32 [T] below positions; write out float32 [T, N]; real eps",
         ObjectKind::none, norm_rope_refusal},
        {"altup_predict",
         "s0 float32 [T, W]; s1 float32 [T, W]; s2 float32 [T, W]; s3 float32 [T, W]; "
         "coefficients float32 [T, 16]; write p0 float32 [T, W]; write p1 float32 [T, W]; "
         "write p2 float32 [T, W]; write p3 float32 [T, W]"},
        {"altup_correct",
         "p0 float32 [T, W]; p1 float32 [T, W]; p2 float32 [T, W]; p3 float32 [T, W]; "
         "activated float32 [T, W]; coefficients float32 [T, 4]; weight float32 [W]; "
         "write c0 float32 [T, W]; write c1 float32 [T, W]; write c2 float32 [T, W]; "
         "write c3 float32 [T, W]; write scaled float32 [T, W]"},
        {"match_magnitude",
         "x float32 [T, W]; target float32 [T, W]; write out float32 [T, W]; real least"},
        {"gather_rows", "x float32 [T, W]; rows int32 [S] below T; write out float32 [S, W]"},
        {"norm_columns",
         "update x float32 [T, W]; weight float32 [columns]; integer first; integer group; "
         "real eps",
         ObjectKind::none, columns_refusal},
    };
}

// The extents that the `object` argument of a call defines. packed_linear [N, C]: C, N (also as V)
// and `row_bytes`, the bytes of a quantized row of C numbers; `rounded_bytes`, those of a row in
// the formats that dense parts multiply; and `bf16_bytes`, those of a row in bf16. packed_experts:
// E, F, W, and the bytes of a quantized row of W numbers (`row_bytes`) and of F numbers
// (`inner_bytes`). adapter_slots: C and N of the layer `linear`, and `inner_columns`, the columns
// of the scratch tensor `inner`.
std::vector<SignatureRow> weight_kernels() {
    return {
        {"embedding", "tokens int32 [T] below V; write out float32 [T, C]; real scale",
         ObjectKind::packed_rows},
        {"quantize_rows", "x float32 [T, C]; write quantized uint8 [T, row_bytes]",
         ObjectKind::packed_linear},
        {"linear_affine",
         "quantized uint8 [T, row_bytes]; write out float32 [T, N]; integer threads",
         ObjectKind::packed_linear},
        {"round_rows", "x float32 [T, C]; write bf16 uint8 [T, bf16_bytes]",
         ObjectKind::packed_linear},
        {"linear_prompt", "bf16 uint8 [T, bf16_bytes]; write out float32 [T, N]; integer threads",
         ObjectKind::packed_linear},
        {"linear_dense",
         "x float32 [T, C]; write out float32 [T, N]; write rounded uint8 [T, rounded_bytes]; "
         "integer threads",
         ObjectKind::packed_linear},
        {"lora",
         "x float32 [T, C]; update y float32 [T, N]; order int32 [T]; starts int32 [R+1]; "
         "slots int32 [R]; write inner float32 [T, inner_columns]; integer linear; integer threads",
         ObjectKind::adapter_slots},
        {"experts",
         "x float32 [T, W]; chosen int32 [T, top_k] below E; shares float32 [T, top_k]; "
         "write out float32 [T, W]; write rows uint8 [T, top_k*row_bytes]; "
         "write gate_up float32 [T, 2*top_k*F]; write inner uint8 [T, top_k*inner_bytes]; "
         "write y float32 [T, top_k*W]; write lists int32 [T, 4*top_k]; write counts int32 [E+1]; "
         "integer threads",
         ObjectKind::packed_experts},
    };
}

std::vector<SignatureRow> routing_kernels() {
    const std::string tensors = "logits float32 [T, E]; write chosen int32 [T, top_k] below E; "
                                "write shares float32 [T, top_k]";
    const std::string rule = "; integer scoring; integer renormalize; integer groups; "
                             "integer groups_per_token; integer best_of_group; real epsilon; "
                             "real scale; real jitter";
    return {
        {"route_experts", tensors + rule, ObjectKind::none, routing_refusal},
        {"route_experts_by_bias", tensors + "; bias float32 [E]" + rule, ObjectKind::none,
         routing_refusal},
        {"route_scaled_experts", tensors + "; expert_scale float32 [E]" + rule, ObjectKind::none,
         routing_refusal},
    };
}

std::vector<SignatureRow> attention_kernels() {
    const auto rope_cache_of = [](const std::string& keys, const std::string& values) {
        return "qkv float32 [T, H*D+2*K*D]; rope float32 [positions, rotated]; "
               "positions int32 [T] below positions; slots int32 [T] below B*P; update keys " +
               keys + "; update values " + values + "; write out float32 [T, H*D]";
    };
    const auto attention_of = [](const std::string& keys, const std::string& values) {
        return "q float32 [T, H*D]; query_starts int32 [R+1]; context_lens int32 [R]; "
               "block_tables int32 [R, max_blocks]; keys " +
               keys + "; values " + values + "; write out float32 [T, H*D]";
    };
    const std::string keys = "float32|float16 [B, K, D, P]",
                      values = "float32|float16 [B, K, P, D]";
    const std::string int8_keys = "int8 [B, K, D+4, P]", int8_values = "int8 [B, K, P, D+4]";
    const std::string rope_cache = rope_cache_of(keys, values);
    const std::string int8_rope_cache = rope_cache_of(int8_keys, int8_values);
    const std::string attention = attention_of(keys, values);
    const std::string norms = "; q_weight float32 [D]; k_weight float32 [D]";
    const std::string with_partials = "; write partials float32 [partials]";
    const std::string partials = attention + with_partials;
    const std::string int8_partials = attention_of(int8_keys, int8_values) + with_partials;
    const std::string heads = "; integer H; integer K; integer D";
    const std::string scalars = heads + "; integer window; real scale";
    const std::string capped = scalars + "; real softcap";
    return {
        {"rope_cache", rope_cache + heads, ObjectKind::none, rope_refusal},
        {"norm_rope_cache", rope_cache + norms + heads + "; real eps", ObjectKind::none,
         rope_refusal},
        {"int8_rope_cache", int8_rope_cache + heads, ObjectKind::none, rope_refusal},
        {"int8_norm_rope_cache", int8_rope_cache + norms + heads + "; real eps", ObjectKind::none,
         rope_refusal},
        {"norm_values", "x float32 [T, C]; write out float32 [T, H*D+2*K*D]" + heads + "; real eps",
         ObjectKind::none, values_refusal},
        {"paged_attention", partials + capped, ObjectKind::none, causal_refusal},
        {"sink_attention", partials + "; sinks float32 [H]" + capped, ObjectKind::none,
         causal_refusal},
        {"visible_attention", partials + "; visible int32 [T]" + capped, ObjectKind::none,
         attention_refusal},
        {"int8_paged_attention", int8_partials + capped, ObjectKind::none, causal_refusal},
        {"int8_sink_attention", int8_partials + "; sinks float32 [H]" + capped, ObjectKind::none,
         causal_refusal},
        {"int8_visible_attention", int8_partials + "; visible int32 [T]" + capped, ObjectKind::none,
         attention_refusal},
        {"bidirectional_attention", attention + scalars, ObjectKind::none, attention_refusal},
        {"rounded_attention", attention + scalars, ObjectKind::none, attention_refusal},
        {"biased_attention", attention + "; bias float32 [H, distances]" + scalars,
         ObjectKind::none, biased_attention_refusal},
    };
}

std::vector<SignatureRow> sampler_kernels() {
    return {
        {"adjust_logits",
         "update logits float32 [S, V]; bias_starts int32 [S+1] up to biased; "
         "bias_tokens int32 [biased] below V; bias_values float32 [biased]; "
         "seen_starts int32 [S+1] up to seen; seen_tokens int32 [seen] below V; "
         "seen_counts int32 [seen]; presence float32 [S]; frequency float32 [S]; "
         "repetition float32 [S]; dry_starts int32 [S+1] up to dried; "
         "dry_tokens int32 [dried] below V; dry_values float32 [dried]; "
         "masks int32 [num_masks, words]; mask int32 [S] below num_masks+1; "
         "write barren int32 [S]",
         ObjectKind::none, mask_refusal},
        {"argmax", "logits float32 [S, V]; write out int32 [S]"},
        {"sample", "logits float32 [S, V]; temperature float32 [S]; top_k int32 [S]; "
                   "top_p float32 [S]; min_p float32 [S]; seed int64 [S]; position int64 [S]; "
                   "write out int32 [S]"},
        {"top_logprobs",
         "logits float32 [S, V]; rows int32 [R] below S; tokens int32 [R] below V; "
         "write own float32 [R]; write ids int32 [R, count]; write logprobs float32 [R, count]",
         ObjectKind::none, count_refusal},
    };
}

} // namespace

const std::vector<Signature>& signatures() {
    static const std::vector<Signature> all = [] {
        std::vector<Signature> found;
        for (const auto& rows :
             {row_kernels(), weight_kernels(), routing_kernels(), attention_kernels(),
              latent_kernels(), sampler_kernels(), recurrent_kernels()}) {
            for (const SignatureRow& row : rows) {
                found.push_back(parsed(row.kernel, row.text, row.object, row.refusal));
            }
        }
        return found;
    }();
    return all;
}

const Signature* signature_of(std::string_view kernel) {
    for (const Signature& signature : signatures()) {
        if (signature.kernel == kernel) {
            return &signature;
        }
    }
    return nullptr;
}

} // namespace penstock::bind
