#include "bind/call/latent_signatures.h"

namespace penstock::bind {
namespace {

int64_t latent_extent(const Symbols& symbols, const char* name) {
    return symbols.evaluate(name).value().value;
}

std::string latent_refusal(const Symbols& symbols, int) {
    const int64_t latent = latent_extent(symbols, "latent"),
                  rotated = latent_extent(symbols, "rotated");
    if (latent < 8 || rotated < 8 || latent % 8 != 0 || rotated % 8 != 0 ||
        latent + rotated > 1024) {
        return "latent, rotated: must be positive multiples of 8 with a sum of at most 1024";
    }
    return {};
}

std::string latent_attention_refusal(const Symbols& symbols, int lanes) {
    if (latent_extent(symbols, "heads") < 1) {
        return "heads: must be positive";
    }
    const std::string reason = block_refusal(symbols, lanes);
    return reason.empty() ? latent_refusal(symbols, lanes) : reason;
}

std::string head_linear_refusal(const Symbols& symbols, int) {
    if (latent_extent(symbols, "columns") !=
        latent_extent(symbols, "parts") * latent_extent(symbols, "C")) {
        return "x: must have the input columns of each head";
    }
    return {};
}

std::string latent_query_refusal(const Symbols& symbols, int lanes) {
    const int64_t heads = latent_extent(symbols, "heads");
    if (latent_extent(symbols, "parts") != heads ||
        latent_extent(symbols, "N") != heads * latent_extent(symbols, "latent")) {
        return "object: must have a matrix [latent, C] for each head";
    }
    return latent_refusal(symbols, lanes);
}

} // namespace

std::string block_refusal(const Symbols& symbols, int lanes) {
    const int64_t block = latent_extent(symbols, "P");
    if (block < 1 || block % lanes != 0 || (block % 64 != 0 && 64 % block != 0)) {
        return "P: must be a multiple of " + std::to_string(lanes) +
               " that divides 64 or is a multiple of it";
    }
    return {};
}

std::vector<SignatureRow> latent_kernels() {
    return {
        {"head_linear", "x float32 [T, columns]; write out float32 [T, N]; integer threads",
         ObjectKind::packed_linear, head_linear_refusal},
        {"latent_query",
         "q float32 [T, heads*C+heads*rotated]; rope float32 [positions, rotated]; "
         "positions int32 [T] below positions; "
         "write out float32 [T, heads*latent+heads*rotated]; integer threads; integer heads; "
         "integer latent; integer rotated",
         ObjectKind::packed_linear, latent_query_refusal},
        {"latent_cache",
         "kv float32 [T, latent+rotated]; norm_weight float32 [latent]; "
         "rope float32 [positions, rotated]; positions int32 [T] below positions; "
         "slots int32 [T] below B*P; update keys float32|float16 [B, 1, latent+rotated, P]; "
         "update values float32|float16 [B, 1, P, latent]; real eps",
         ObjectKind::none, latent_refusal},
        {"latent_attention",
         "q float32 [T, heads*latent+heads*rotated]; query_starts int32 [R+1]; "
         "context_lens int32 [R]; block_tables int32 [R, max_blocks]; "
         "keys float32|float16 [B, 1, latent+rotated, P]; "
         "values float32|float16 [B, 1, P, latent]; write out float32 [T, heads*latent]; "
         "write partials float32 [partials]; integer heads; integer latent; integer rotated; "
         "real scale",
         ObjectKind::none, latent_attention_refusal},
    };
}

} // namespace penstock::bind
