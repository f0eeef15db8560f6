// Exact dot products of unsigned weights and int8 activations, accumulated in int32 over a group:
// the micro-kernel primitives of linear_affine. One implementation per instruction set; all give
// the same integers.
//
//   struct Words                        one word of 4 bytes per lane
//   load_words(p)                       kLanes words
//   broadcast_word(p)                   the 4 int8 activations at p, in every lane
//   low_nibbles(w), high_nibbles(w)     the low or high 4 bits of each byte
//   table_lookup(table, w)              table[byte] for each byte, which is 0 .. 15
//   two_bits<i>(w)                      bits 2 i and 2 i + 1 of each byte, moved to bits 4 and 5
//   join(a, b)                          a | b
//   sums_times(p, first, second) -> I32 p[0] * first + p[1] * second for the two int16 at p
//   byte_of<i>(w) -> I32                byte i of each word (on ISAs with 16 lanes)
//
//   kDotsAlike                          whether Dot is the same type for all `bits`
//   Dot<bits>: weights are 0 .. 2^bits - 1 (bits 4, 6 or 8); a group is 4 or 8 words.
//     kVectors                vectors of a packed tile whose accumulators fit the registers
//     kStepWords              words of a step, 1 or 2
//     kCentre                 number that is subtracted from each weight
//     Weight prepare(Words)   converts a word of weights for mac
//     Sum                     accumulators of one group
//     mac<step>(Sum&, w, x)   adds a step: Weights and Words of activations; step 0 resets the Sum
//     finish(Sum) -> I32      sum of (q - kCentre) * x over the group
#pragma once

#include "cpu/pack/packed_tile.h"
#include "cpu/simd/simd.h"

#if defined(PENSTOCK_SIMD_AVX512)
#include "cpu/dot/int_dot_avx512.h"
#elif defined(PENSTOCK_SIMD_AVX2)
#include "cpu/dot/int_dot_avx2.h"
#elif defined(PENSTOCK_SIMD_NEON)
#include "cpu/dot/int_dot_neon.h"
#else
#include "cpu/dot/int_dot_array.h"
#endif
