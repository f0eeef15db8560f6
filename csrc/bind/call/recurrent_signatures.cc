#include "bind/call/recurrent_signatures.h"

#include "bind/call/state_checks.h"

namespace penstock::bind {
namespace {

int64_t extent_named(const Symbols& symbols, const char* name) {
    return symbols.evaluate(name).value().value;
}

std::string conv_refusal(const Symbols& symbols, int) {
    const int64_t taps = extent_named(symbols, "L"), before = extent_named(symbols, "before");
    if (taps < 2 || taps > 4) {
        return "L: must be 2, 3 or 4";
    }
    if (before != taps - 1) {
        return "saved: must have L - 1 = " + std::to_string(taps - 1) + " inputs per snapshot";
    }
    return extent_named(symbols, "ring") < before
               ? "recent: must have at least L - 1 inputs per row"
               : "";
}

std::string scan_refusal(const Symbols& symbols, int) {
    const int64_t groups = extent_named(symbols, "G"), heads = extent_named(symbols, "H");
    if (groups < 1 || heads < 1 || heads % groups != 0) {
        return "H: must be a positive multiple of G";
    }
    for (const char* name : {"N", "D"}) {
        if (const int64_t dim = extent_named(symbols, name); dim < 8 || dim > 512 || dim % 8 != 0) {
            return std::string(name) + ": must be a multiple of 8 from 8 to 512";
        }
    }
    if (const int64_t ring = extent_named(symbols, "ring");
        ring != state_tile && ring != 2 * state_tile) {
        return "keys: must have 16 or 32 tokens per row";
    }
    if (extent_named(symbols, "state_slots") < extent_named(symbols, "rows")) {
        return "matrix: must have at least one slot per row";
    }
    return extent_named(symbols, "threads") < 1 ? "threads: must be positive" : "";
}

std::string group_refusal(const Symbols& symbols, int) {
    const int64_t groups = extent_named(symbols, "groups");
    return groups < 1 || extent_named(symbols, "W") % groups != 0 ? "groups: must divide W" : "";
}

std::string gate_refusal(const Symbols& symbols, int) {
    const int64_t columns = extent_named(symbols, "gate_columns");
    return columns != 1 && columns != extent_named(symbols, "W") ? "gate: must have 1 or W columns"
                                                                 : "";
}

std::string conv_text(const std::string& columns) {
    return "x float32 [T, " + columns + "]; weight float32 [C, L]; bias float32 [C]; ";
}

} // namespace

std::vector<SignatureRow> recurrent_kernels() {
    const std::string chunks =
        "query_starts int32 [R+1]; context_lens int32 [R]; state_source int32 [R]; "
        "state_base int32 [R]; state_target int32 [R]; state_keep int32 [R]; "
        "state_save int32 [R]; state_save_after int32 [R]; ";
    const std::string conv =
        chunks + "update recent float32 [rows, ring, C]; "
                 "update saved float32 [snapshots, before, C]; write out float32 [T, C]";
    const std::string scan =
        chunks + "update matrix float32 [state_slots, H, N, D]; "
                 "update keys float32 [rows, ring, G*N]; update values float32 [rows, ring, H*D]; "
                 "update decays float32 [rows, ring, H]; write out float32 [T, H*D]; "
                 "integer G; integer H; integer N; integer D; integer threads; ";
    const std::string norm = "x float32 [T, W]; gate float32 [T, W]; weight float32 [W]; "
                             "write out float32 [T, W]; integer groups; real eps";
    return {
        {"causal_conv", conv_text("C") + conv, ObjectKind::none, conv_refusal},
        {"gated_conv", conv_text("3*C") + conv, ObjectKind::none, conv_refusal},
        {"gated_delta_rule",
         "qkv float32 [T, 2*G*N+H*D]; gates float32 [T, 2*H]; decay float32 [2, H]; " + scan +
             "real beta_scale",
         ObjectKind::none, scan_refusal},
        {"state_space_scan",
         "xbc float32 [T, H*D+2*G*N]; dt float32 [T, H]; constants float32 [3, H]; " + scan +
             "real dt_low; real dt_high",
         ObjectKind::none, scan_refusal},
        {"norm_then_gate", norm, ObjectKind::none, group_refusal},
        {"gate_then_norm", norm, ObjectKind::none, group_refusal},
        {"sigmoid_mul",
         "x float32 [T, W]; gate float32 [T, gate_columns]; write out float32 [T, W]",
         ObjectKind::none, gate_refusal},
        {"silu_gate", "x float32 [T, W]; gate float32 [T, W]; write out float32 [T, W]"},
        {"add", "x float32 [T, W]; y float32 [T, W]; write out float32 [T, W]"},
        {"relu_squared", "x float32 [T, F]; write out float32 [T, F]"},
    };
}

} // namespace penstock::bind
