// Mixture of experts: the experts' feed-forward layers. Included by the ISA files.
//
//   experts        tensors: x [T, W], chosen [T, C] in 0..E-1, shares [T, C], out [T, W]; scratch:
//                  rows u8 [T, C * X], gate_up f32 [T, C * 2 F], inner u8 [T, C * Y], y f32
//                  [T, C * W], lists i32 [T, 4 * C], counts i32 [E + 1]
//                  X, Y: bytes of a row in the form that products read, of x and between the layers
//                  integer[0]: threads, as for linear_affine; object: ExpertWeights
//
// Pair i = t * C + c is token t with its chosen expert number c. Pairs are sorted by expert;
// place[i] is the index of pair i in the sorted order. The rows of an expert are thus contiguous
// and pass through the tiles of the linear kernels, whose bits for a row do not depend on other
// rows. A token's results are summed over c in order: out = fma(shares[c], y[place[t * C + c]],
// out).
#pragma once

#include <cstring>

#include "cpu/linear/linear_affine.inl.h"
#include "cpu/linear/linear_dense.inl.h"
#include "cpu/linear/quantize.inl.h"
#include "cpu/ops/activation.inl.h"
#include "cpu/pack/expert_layer.h"
#include "cpu/row_tasks.inl.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace experts {

enum Phase : int { sort, gather, open, activate, close, combine, num_phases };

using Tasks = RowTasks<8192>; // tasks that copy, activate or sum rows

// State of a call. `place[i]` is the index of pair i in the order of experts. Block b has the rows
// begin[b] .. end[b] - 1 of that order, all of expert[b].
struct Call {
    const ExpertWeights* packed_tiles;
    int64_t tokens;
    int64_t per_token;
    int64_t choices;
    int64_t width;
    int64_t ff;
    int64_t opened; // columns of the first layer: 2 F, or F without gates
    int64_t row_bytes;
    int64_t inner_bytes;
    int32_t* place;
    int32_t* expert;
    int32_t* begin;
    int32_t* end;
    int32_t* counts;
};

PENSTOCK_INLINE Call call_of(const Arguments& arguments) {
    const auto* packed_tiles = static_cast<const ExpertWeights*>(arguments.object);
    const int64_t tokens = arguments.tensor[0].shape[0];
    const int64_t per_token = arguments.tensor[1].shape[1], choices = tokens * per_token;
    auto* lists = static_cast<int32_t*>(arguments.tensor[8].data);
    return {packed_tiles,
            tokens,
            per_token,
            choices,
            packed_tiles->gate_up.packed_tiles.depth,
            packed_tiles->down.packed_tiles.depth,
            packed_tiles->gate_up.packed_tiles.rows,
            arguments.tensor[4].shape[1] / per_token,
            arguments.tensor[6].shape[1] / per_token,
            lists,
            lists + choices,
            lists + 2 * choices,
            lists + 3 * choices,
            static_cast<int32_t*>(arguments.tensor[9].data)};
}

// The division of a layer's products into tasks: every block of rows times every chunk of packed
// tiles of the parts.
struct Cut {
    int64_t blocks;
    int64_t chunk_packed_tiles;
    int64_t chunks; // per part; all parts have the same number of rows
    int64_t parts;
};

PENSTOCK_INLINE Cut cut_of(const Call& call, const ExpertLayer& layer, int64_t threads) {
    const PackedMatrix& part = layer.packed_tiles.parts[0];
    const int64_t blocks = call.counts[call.packed_tiles->count];
    const int64_t total = blocks * layer.parts_each * part.packed_tiles * part.packed_tile_bytes;
    const int64_t wanted = (threads > 0 ? threads : kDefaultThreads) * kTasksPerThread;
    int64_t bytes = ceil_div(total, wanted);
    bytes = bytes < kMinChunkBytes ? kMinChunkBytes : bytes;
    bytes = bytes > kMaxChunkBytes ? kMaxChunkBytes : bytes;
    const int64_t packed_tiles =
        bytes / part.packed_tile_bytes < 1 ? 1 : bytes / part.packed_tile_bytes;
    return {blocks, packed_tiles, ceil_div(part.packed_tiles, packed_tiles), layer.parts_each};
}

// Sorts the (token, chosen expert) pairs by expert with a counting sort, and divides the rows of
// each expert into blocks.
PENSTOCK_INLINE void sort_choices(const Call& call, const TensorView& chosen) {
    const int64_t count = call.packed_tiles->count;
    for (int64_t e = 0; e < count; ++e)
        call.counts[e] = 0;
    for (int64_t t = 0; t < call.tokens; ++t) {
        for (int64_t c = 0; c < call.per_token; ++c)
            ++call.counts[chosen.row<int32_t>(t)[c]];
    }
    int32_t blocks = 0, next = 0;
    for (int64_t e = 0; e < count; ++e) {
        const int32_t stop = next + call.counts[e];
        call.counts[e] = next;
        for (; next < stop; ++blocks) {
            call.expert[blocks] = static_cast<int32_t>(e);
            call.begin[blocks] = next;
            next = stop - next > kRowBlock ? next + static_cast<int32_t>(kRowBlock) : stop;
            call.end[blocks] = next;
        }
    }
    for (int64_t t = 0; t < call.tokens; ++t) {
        for (int64_t c = 0; c < call.per_token; ++c) {
            int32_t& free = call.counts[chosen.row<int32_t>(t)[c]];
            call.place[t * call.per_token + c] = free++;
        }
    }
    call.counts[count] = blocks;
}

// Writes a row in the form that the products of `layer` read. `from` may be the floats of the row
// at `to`.
PENSTOCK_INLINE void write_row(const ExpertLayer& layer, const float* from, uint8_t* to) {
    const int64_t depth = layer.packed_tiles.depth;
    if (layer.affine) {
        int64_t next = 0;
        quantize_units(depth / kUnit, [&](const float*& unit, QuantizedUnit*& quantized) {
            unit = from + next * kUnit;
            quantized = reinterpret_cast<QuantizedUnit*>(to) + next++;
        });
        if constexpr (kTiles)
            split_sums(to, depth, 0, depth / kUnit);
        if constexpr (kPairedScales)
            pair_units(to, depth);
    }
    if (layer.dense) {
        std::memcpy(to + expert_float_offset(layer.affine, depth), from,
                    static_cast<size_t>(depth) * sizeof(float));
    }
}

// Writes the row of each of the token's pairs: share * x. The scaled floats are kept in the pair's
// row of `y` meanwhile.
PENSTOCK_INLINE void gather_scaled(const Call& call, const Arguments& arguments, int64_t token) {
    auto* rows = static_cast<uint8_t*>(arguments.tensor[4].data);
    const float* x = arguments.tensor[0].row<float>(token);
    const float* share = arguments.tensor[2].row<float>(token);
    const int32_t* place = call.place + token * call.per_token;
    for (int64_t c = 0; c < call.per_token; ++c) {
        float* scaled = static_cast<float*>(arguments.tensor[7].data) + place[c] * call.width;
        for (int64_t i = 0; i < call.width; i += kLanes) {
            const int n = lanes_from(i, call.width);
            store_lanes(scaled + i, load_lanes(x + i, n) * broadcast(share[c]), n);
        }
        write_row(call.packed_tiles->gate_up, scaled, rows + place[c] * call.row_bytes);
    }
}

PENSTOCK_INLINE void gather_token(const Call& call, const Arguments& arguments, int64_t token) {
    if (call.packed_tiles->scales_input)
        return gather_scaled(call, arguments, token);
    auto* rows = static_cast<uint8_t*>(arguments.tensor[4].data);
    const int32_t* place = call.place + token * call.per_token;
    uint8_t* first = rows + place[0] * call.row_bytes;
    write_row(call.packed_tiles->gate_up, arguments.tensor[0].row<float>(token), first);
    for (int64_t c = 1; c < call.per_token; ++c) {
        std::memcpy(rows + place[c] * call.row_bytes, first, static_cast<size_t>(call.row_bytes));
    }
}

// Computes max(x, 0)^2. NaN propagates: max returns the second operand if either is NaN.
struct ReluSquared {
    PENSTOCK_INLINE F32 of(F32 x) {
        const F32 positive = max(broadcast(0.0f), x);
        return positive * positive;
    }
};

// Computes ExpertActivation::swiglu_oai. NaN propagates: min and max return the second operand if
// either is NaN.
struct SwigluOai {
    PENSTOCK_INLINE F32 of(F32 gate, F32 up) {
        const F32 limit = broadcast(7.0f), one = broadcast(1.0f);
        gate = min(limit, gate);
        up = max(-limit, min(limit, up));
        return (up + one) * (gate / (one + exp(gate * broadcast(-1.702f))));
    }
};

// Activates a row of the first layer's results, in place: gate, then up, or only up without gates.
template <class Activation>
PENSTOCK_INLINE void apply(const Call& call, float* row) {
    const float* up = row + call.ff;
    const bool gated = call.opened > call.ff;
    for (int64_t i = 0; i < call.ff; i += kLanes) {
        const int n = lanes_from(i, call.ff);
        F32 value = Activation::of(load_lanes(row + i, n));
        if (gated)
            value = value * load_lanes(up + i, n);
        store_lanes(row + i, value, n);
    }
}

PENSTOCK_INLINE void apply_swiglu_oai(const Call& call, float* row) {
    const float* up = row + call.ff;
    for (int64_t i = 0; i < call.ff; i += kLanes) {
        const int n = lanes_from(i, call.ff);
        store_lanes(row + i, SwigluOai::of(load_lanes(row + i, n), load_lanes(up + i, n)), n);
    }
}

// Activates row `place` of gate_up, where the result replaces its first F columns, and writes it to
// row `place` of `inner`.
PENSTOCK_INLINE void activate_row(const Call& call, const Arguments& arguments, int64_t place) {
    float* row = static_cast<float*>(arguments.tensor[5].data) + place * call.opened;
    switch (call.packed_tiles->activation) {
    case ExpertActivation::silu: apply<activation::Silu>(call, row); break;
    case ExpertActivation::gelu_tanh: apply<activation::GeluTanh>(call, row); break;
    case ExpertActivation::relu_squared: apply<ReluSquared>(call, row); break;
    case ExpertActivation::swiglu_oai: apply_swiglu_oai(call, row); break;
    }
    auto* to = static_cast<uint8_t*>(arguments.tensor[6].data) + place * call.inner_bytes;
    write_row(call.packed_tiles->down, row, to);
}

PENSTOCK_INLINE void combine_token(const Call& call, const Arguments& arguments, int64_t token) {
    const auto* y = static_cast<const float*>(arguments.tensor[7].data);
    const float* share = arguments.tensor[2].row<float>(token);
    const bool scaled = call.packed_tiles->scales_input;
    float* out = arguments.tensor[3].row<float>(token);
    const int32_t* place = call.place + token * call.per_token;
    for (int64_t i = 0; i < call.width; i += kLanes) {
        const int n = lanes_from(i, call.width);
        F32 sum = broadcast(0.0f);
        for (int64_t c = 0; c < call.per_token; ++c) {
            const F32 factor = broadcast(scaled ? 1.0f : share[c]);
            sum = fma(factor, load_lanes(y + place[c] * call.width + i, n), sum);
        }
        store_lanes(out + i, sum, n);
    }
}

// Multiplies one block of rows with one chunk of packed tiles. `x` and `out` point to row 0.
PENSTOCK_INLINE void multiply(const Call& call, const ExpertLayer& layer, int64_t threads,
                              int64_t index, uint8_t* x, int64_t row_bytes, float* out,
                              Workspace& workspace) {
    const Cut cut = cut_of(call, layer, threads);
    const int64_t block = index / (cut.parts * cut.chunks), rest = index % (cut.parts * cut.chunks);
    const PackedMatrix& part =
        layer.packed_tiles.parts[call.expert[block] * cut.parts + rest / cut.chunks];
    const int64_t begin = rest % cut.chunks * cut.chunk_packed_tiles,
                  end = begin + cut.chunk_packed_tiles;
    const LinearTask task{&part, begin, end < part.packed_tiles ? end : part.packed_tiles,
                          call.begin[block], call.end[block]};
    LinearWeights packed_tiles = layer.packed_tiles;
    const int64_t columns = packed_tiles.rows;
    if (packed_tiles.bias != nullptr)
        packed_tiles.bias += call.expert[block] * columns;
    if (is_affine(part.encoding)) {
        multiply_affine({&packed_tiles, x, row_bytes, out, columns}, task, workspace);
        return;
    }
    TensorView from, to;
    from.data = x + expert_float_offset(layer.affine, layer.packed_tiles.depth);
    from.stride[0] = row_bytes / static_cast<int64_t>(sizeof(float));
    to.data = out;
    to.stride[0] = columns;
    multiply_dense(packed_tiles, task, from, TensorView{}, to, workspace);
}

int phases(const Arguments& arguments) {
    return arguments.tensor[0].shape[0] > 0 ? num_phases : 0;
}

int64_t tasks(const Arguments& arguments, int phase) {
    const Call call = call_of(arguments);
    switch (phase) {
    case sort: return 1;
    case gather: return Tasks::count(call.tokens, call.width);
    case activate: return Tasks::count(call.choices, call.ff);
    case combine: return Tasks::count(call.tokens, call.width * call.per_token);
    default: break;
    }
    const ExpertLayer& layer = phase == open ? call.packed_tiles->gate_up : call.packed_tiles->down;
    const Cut cut = cut_of(call, layer, arguments.integer[0]);
    return cut.blocks * cut.parts * cut.chunks;
}

void run(const Arguments& arguments, int phase, int64_t task, Workspace& workspace) {
    const Call call = call_of(arguments);
    const auto bytes = [&](int i) { return static_cast<uint8_t*>(arguments.tensor[i].data); };
    const auto floats = [&](int i) { return static_cast<float*>(arguments.tensor[i].data); };
    switch (phase) {
    case sort: sort_choices(call, arguments.tensor[1]); break;
    case gather:
        Tasks::each(task, call.tokens, call.width,
                    [&](int64_t token) { gather_token(call, arguments, token); });
        break;
    case open:
        multiply(call, call.packed_tiles->gate_up, arguments.integer[0], task, bytes(4),
                 call.row_bytes, floats(5), workspace);
        break;
    case activate:
        Tasks::each(task, call.choices, call.ff,
                    [&](int64_t place) { activate_row(call, arguments, place); });
        break;
    case close:
        multiply(call, call.packed_tiles->down, arguments.integer[0], task, bytes(6),
                 call.inner_bytes, floats(7), workspace);
        break;
    default:
        Tasks::each(task, call.tokens, call.width * call.per_token,
                    [&](int64_t token) { combine_token(call, arguments, token); });
        break;
    }
}

PENSTOCK_INLINE size_t layer_workspace_bytes(const ExpertLayer& layer) {
    const size_t affine = layer.affine ? affine_workspace_bytes(layer.packed_tiles) : 0;
    const size_t dense = layer.dense ? dense_workspace_bytes(layer.packed_tiles) : 0;
    return affine > dense ? affine : dense;
}

size_t workspace_bytes(const Arguments& arguments) {
    const auto& packed_tiles = *static_cast<const ExpertWeights*>(arguments.object);
    const size_t first = layer_workspace_bytes(packed_tiles.gate_up);
    const size_t second = layer_workspace_bytes(packed_tiles.down);
    return first > second ? first : second;
}

} // namespace experts

constexpr Kernel kExpertKernels[] = {
    {"experts", experts::phases, experts::tasks, experts::run, experts::workspace_bytes},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
