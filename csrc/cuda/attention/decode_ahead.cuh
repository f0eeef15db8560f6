// Keys and values on their way into shared memory while earlier ones are attended to.
//
// A lane copies just what it will use itself, to places that no other lane touches: so nothing is
// exchanged, no barrier is needed, and the places of a load lie side by side.
#pragma once

#include "cuda/attention/decode_tile.cuh"

namespace penstock::cuda {

constexpr int kListed = 32; // units that a block looks up at a time

template <class Cached>
struct PieceOf {
    using Type = Words4;
};
template <>
struct PieceOf<E4m3> {
    using Type = Words2;
};

// Sixteen keys and their values, for one warp.
template <int kDim, class Cached>
struct alignas(16) Stage {
    using Piece = typename PieceOf<Cached>::Type;
    Piece keys[2][kDim / 32][kWarp];
    Piece values[4][kDim / 64][kWarp];
};

// What a warp asks for, unit after unit of the list. `ring`: [kStages, kWarpsOfDecode].
template <int kDim, class Cached, int kStages>
class Reader {
  public:
    __device__ Reader(const DecodeAttention& call, const Unit* listed, int count,
                      Stage<kDim, Cached>* ring)
        : call_(call), listed_(listed), count_(count), ring_(ring + threadIdx.x / kWarp) {
        open();
#pragma unroll
        for (int i = 0; i < kStages; ++i)
            ask();
    }

    // The stage that was asked for first, when it has come.
    __device__ const Stage<kDim, Cached>& oldest() const {
        wait_for_copies<kStages - 1>();
        return ring_[stage_ * kWarpsOfDecode];
    }

    // Asks for the next keys, into the oldest stage.
    __device__ void ask() {
        if (at_ < count_)
            copy();
        commit_copies();
        stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    }

  private:
    // Finds the next unit, from `at_` on, in which the warp has keys.
    __device__ void open() {
        for (; at_ < count_; ++at_) {
            const Unit& unit = listed_[at_];
            keys_ = keys_of(unit, threadIdx.x / kWarp);
            if (keys_.base >= keys_.last)
                continue;
            block_ = table_of(call_, unit)[keys_.base >> call_.block_shift];
            return;
        }
    }

    __device__ void copy() {
        const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
        Stage<kDim, Cached>& stage = ring_[stage_ * kWarpsOfDecode];
        const Unit& unit = listed_[at_];
        const int64_t row =
            panel_of<kDim>(call_, unit) + (keys_.base & ((1 << call_.block_shift) - 1)) * kDim;
        const Cached* const keys =
            static_cast<const Cached*>(call_.keys) + block_ * call_.key_stride + row + 8 * t;
        const Cached* const values =
            static_cast<const Cached*>(call_.values) + block_ * call_.value_stride + row + 8 * g;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c)
                copy_async(&stage.keys[tile][c][lane], keys + (8 * tile + g) * kDim + 32 * c, true);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = 2 * t + i % 2 + 8 * (i / 2);
            // What nobody wrote may be NaN, which a weight of zero does not hide.
            const bool exists = keys_.base + key < keys_.last;
#pragma unroll
            for (int u = 0; u < kDim / 64; ++u)
                copy_async(&stage.values[i][u][lane], values + key * kDim + 64 * u, exists);
        }
        keys_.base += kKeysOfBlock;
        if (keys_.base < keys_.last) {
            block_ = table_of(call_, unit)[keys_.base >> call_.block_shift]; // for the next call
        } else {
            ++at_;
            open();
        }
    }

    const DecodeAttention& call_;
    const Unit* listed_;
    int count_, at_ = 0;
    Stage<kDim, Cached>* ring_;
    int stage_ = 0;
    Keys keys_{0, 0};
    int block_ = 0;
};

// A warp's share of the unit's keys; `reader` has asked for them in this order.
template <int kDim, class Cached, int kStages>
__device__ __forceinline__ void attend_ahead(Partial<kDim>& partial, const DecodeAttention& call,
                                             const Unit& unit,
                                             Reader<kDim, Cached, kStages>& reader) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    Queries<kDim> queries;
    load_unit<kDim>(queries, call, unit, lane);
    const Keys keys = keys_of(unit, warp);
    for (int base = keys.base; base < keys.last; base += kKeysOfBlock) {
        const Stage<kDim, Cached>& stage = reader.oldest();
        float scores[2][4] = {};
        Words4 key_words[2][kDim / 32];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c)
                key_words[tile][c] = as_bf16(stage.keys[tile][c][lane]);
        }
        scores_of<kDim>(scores, queries.words, key_words);
        weigh<kDim>(scores, partial, queries.scale, base, keys.last, queries.position, call.window,
                    lane % 4);
        Words4 value_words[4][kDim / 64];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int u = 0; u < kDim / 64; ++u)
                value_words[i][u] = as_bf16(stage.values[i][u][lane]);
        }
        add_outputs<kDim>(partial, scores, value_words);
        reader.ask();
    }
    join_masses<kDim>(partial);
}

} // namespace penstock::cuda
