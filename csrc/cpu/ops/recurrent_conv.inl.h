// Depthwise causal convolutions over the tokens of each sequence. Included by the ISA files.
//
//   causal_conv  tensors: 0 x [T, C]; 1 weight [C, L]; 2 bias [C]; 3 to 10 the chunks (see
//                         recurrent_chunk.inl.h); 11 recent [rows, ring, C];
//                         12 saved [snapshots, L - 1, C]; 13 out [T, C]; float32
//   gated_conv   as causal_conv, with x [T, 3 C]
//
// A task computes some channels of one chunk: it reads the inputs before the chunk, and writes the
// ring and the snapshot of these channels at the end. Rows of x may be strided.
#pragma once

#include "cpu/ops/activation.inl.h"
#include "cpu/ops/recurrent_chunk.inl.h"
#include "cpu/row_tasks.inl.h"
#include "cpu/simd/math.inl.h"
#include "cpu/simd/simd.h"
#include "penstock/kernel.h"

namespace penstock::cpu::PENSTOCK_ISA {
namespace {
namespace recurrent {

constexpr int64_t kChannels = 256; // per task
constexpr int64_t kMostTaps = 4;

int64_t conv_tasks(const Arguments& call, int) {
    return call.tensor[4].shape[0] * ceil_div(call.tensor[13].shape[1], kChannels);
}

// Returns the bytes of the weights, the inputs before the chunk and the last inputs.
size_t conv_workspace(const Arguments&) {
    return 3 * static_cast<size_t>(kMostTaps * kChannels) * sizeof(float);
}

// Some channels of the inputs of a chunk. Index i is the i-th token of the chunk; the inputs before
// the chunk have the indices -1 to 1 - L.
template <bool gated>
struct ConvInputs {
    const TensorView& x;
    const float* before; // [L - 1, kChannels]
    int64_t num_before, first, channel, count, channels;

    const float* row(int64_t i) const { return x.row<float>(first + i) + channel; }

    // Writes input i to `to` [count].
    void copy(int64_t i, float* to) const {
        const float* from = i < 0 ? before + (i + num_before) * kChannels : row(i);
        const bool product = gated && i >= 0;
        for (int64_t c = 0; c < count; c += kLanes) {
            const int n = lanes_from(c, count);
            F32 value = load_lanes(from + c, n);
            if (product)
                value = value * load_lanes(from + 2 * channels + c, n);
            store_lanes(to + c, value, n);
        }
    }
};

// Writes the L - 1 inputs before the chunk to `to`.
PENSTOCK_INLINE void inputs_before(const Arguments& call, const StateChunk& chunk, int64_t channel,
                                   int64_t count, float* to) {
    const TensorView &recent = call.tensor[11], &saved = call.tensor[12];
    const int64_t rows = recent.shape[0], ring = recent.shape[1], before = saved.shape[1];
    for (int64_t l = 0; l < before; ++l) {
        const int64_t position = chunk.start - before + l;
        const float* from = nullptr;
        if (chunk.source >= rows) {
            from = saved.row<float>(chunk.source - rows) + l * saved.stride[1];
        } else if (chunk.source >= 0 && position >= 0) {
            from = recent.row<float>(chunk.source) + position % ring * recent.stride[1];
        }
        for (int64_t c = 0; c < count; c += kLanes) {
            const int n = lanes_from(c, count);
            const F32 value = from ? load_lanes(from + channel + c, n) : broadcast(0.0f);
            store_lanes(to + l * kChannels + c, value, n);
        }
    }
}

template <bool gated>
PENSTOCK_INLINE void write_inputs(const Arguments& call, const StateChunk& chunk,
                                  const ConvInputs<gated>& inputs) {
    const TensorView &recent = call.tensor[11], &saved = call.tensor[12];
    const int64_t ring = recent.shape[1], before = saved.shape[1];
    const int64_t known = chunk.source == chunk.target ? 0 : -before;
    for (int64_t i = larger(known, chunk.length() - ring); i < chunk.length(); ++i) {
        if (const int64_t position = chunk.start + i; position >= 0) {
            inputs.copy(i, recent.row<float>(chunk.target) + position % ring * recent.stride[1] +
                               inputs.channel);
        }
    }
    for (int64_t l = 0; chunk.save >= 0 && l < before; ++l) {
        const int64_t i = chunk.save_position - chunk.start - before + l;
        inputs.copy(i, saved.row<float>(chunk.save - recent.shape[0]) + l * saved.stride[1] +
                           inputs.channel);
    }
}

// Computes bias + the sum over l of weight l times input l. `Vector`: F32 or Interleaved.
template <class Vector, int taps, class Load>
PENSTOCK_INLINE Vector convolved(const float* const* window, const float* weights,
                                 const float* bias, int64_t c, const Load& load_vector) {
    Vector y = load_vector(bias + c);
#pragma GCC unroll 4
    for (int l = 0; l < taps; ++l)
        y = fma(load_vector(weights + l * kChannels + c), load_vector(window[l] + c), y);
    return y;
}

// Computes one token from the inputs `window` [L]. With `gated`, the result is multiplied by
// `gate`, else silu is applied.
template <bool gated, int taps>
PENSTOCK_INLINE void convolve_token(const float* const* window, const float* weights,
                                    const float* bias, const float* gate, int64_t count,
                                    float* out) {
    using Several = Interleaved<kInterleaved>;
    int64_t c = 0;
    for (; c + kInterleaved * kLanes <= count; c += kInterleaved * kLanes) {
        const auto whole = [](const float* p) { return Several::loaded(p); };
        const Several y = convolved<Several, taps>(window, weights, bias, c, whole);
        (gated ? y * Several::loaded(gate + c) : activation::Silu::of(y)).stored(out + c);
    }
    for (; c < count; c += kLanes) {
        const int n = lanes_from(c, count);
        const auto part = [n](const float* p) { return load_lanes(p, n); };
        const F32 y = convolved<F32, taps>(window, weights, bias, c, part);
        store_lanes(out + c, gated ? y * load_lanes(gate + c, n) : activation::Silu::of(y), n);
    }
}

template <bool gated, int taps>
void conv_chunk(const Arguments& call, const StateChunk& chunk, int64_t channel, int64_t count,
                float* scratch) {
    const int64_t channels = call.tensor[13].shape[1];
    float *weights = scratch, *before = weights + kMostTaps * kChannels;
    float* products = before + kMostTaps * kChannels; // [L, kChannels]: the last L of b * v
    const float* weight = call.tensor[1].row<float>(0) + channel * taps;
    for (int64_t c = 0; c < count; ++c) {
        for (int64_t l = 0; l < taps; ++l)
            weights[l * kChannels + c] = weight[c * taps + l];
    }
    inputs_before(call, chunk, channel, count, before);
    const ConvInputs<gated> inputs{call.tensor[0], before, taps - 1, chunk.first,
                                   channel,        count,  channels};
    const float* bias = call.tensor[2].row<float>(0) + channel;
    const float* window[taps];
    for (int l = 1; l < taps; ++l)
        window[l] = before + (l - 1) * kChannels;
    for (int64_t i = 0; i < chunk.length(); ++i) {
        for (int l = 1; l < taps; ++l)
            window[l - 1] = window[l];
        window[taps - 1] = inputs.row(i);
        if constexpr (gated) {
            float* product = products + i % taps * kChannels;
            inputs.copy(i, product);
            window[taps - 1] = product;
        }
        const float* gate = gated ? inputs.row(i) + channels : nullptr;
        convolve_token<gated, taps>(window, weights, bias, gate, count,
                                    call.tensor[13].row<float>(chunk.first + i) + channel);
    }
    write_inputs(call, chunk, inputs);
}

template <bool gated>
void conv_run(const Arguments& call, int, int64_t task, Workspace& workspace) {
    const int64_t channels = call.tensor[13].shape[1], parts = ceil_div(channels, kChannels);
    const StateChunk chunk = chunk_of(call, quotient(task, parts));
    const int64_t channel = remainder(task, parts) * kChannels;
    const int64_t count = smaller(kChannels, channels - channel);
    auto* scratch = static_cast<float*>(workspace.data);
    switch (call.tensor[1].shape[1]) {
    case 2: return conv_chunk<gated, 2>(call, chunk, channel, count, scratch);
    case 3: return conv_chunk<gated, 3>(call, chunk, channel, count, scratch);
    default: return conv_chunk<gated, 4>(call, chunk, channel, count, scratch);
    }
}

} // namespace recurrent

constexpr Kernel kConvKernels[] = {
    {"causal_conv", one_phase, recurrent::conv_tasks, recurrent::conv_run<false>,
     recurrent::conv_workspace},
    {"gated_conv", one_phase, recurrent::conv_tasks, recurrent::conv_run<true>,
     recurrent::conv_workspace},
};

} // namespace
} // namespace penstock::cpu::PENSTOCK_ISA
