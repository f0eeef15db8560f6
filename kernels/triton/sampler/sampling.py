"""The sampler: one program per row, without sorting.

Logits are compared as unsigned integers in the same order (`_ordered`). Top-k and top-p each keep
the logits above a threshold and, of the logits equal to it, the first few by token id. The bits of
the threshold are found one by one from the highest; for each bit, a pass over the row counts logits
(top-k) or sums their weights (top-p). The row stays in the L2 cache between passes.
"""

from __future__ import annotations

import torch

from penstock.kernels.ops.sampling import SAMPLE
from penstock.kernels.registry import Impl
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.sampler.adjust import adjust_logits
from penstock.kernels.triton.sampler.philox import uniform
from penstock.kernels.triton.sampler.sampling_operands import sampling_tensors

_BLOCK = 4096


@triton.jit
def _ordered(logits):
    """Map float32 to uint32 keys in the same order; -0 and 0 have the same key."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    flipped = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return flipped.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _from_ordered(key):
    """Return the float32 that `_ordered` maps to `key`."""
    flipped = (key ^ 0x80000000).to(tl.int32, bitcast=True)
    return (flipped ^ ((flipped >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _block(row, base, VOCABULARY, BLOCK: tl.constexpr):
    """Return BLOCK logits from `base` on, -inf past the end of the vocabulary, and their token
    ids."""
    token = base + tl.arange(0, BLOCK)
    return tl.load(row + token, mask=token < VOCABULARY, other=float("-inf")), token


@triton.jit
def _highest(row, VOCABULARY, BLOCK: tl.constexpr):
    """Return the highest logit, NaN if any logit is NaN, and the lowest token id with that
    logit."""
    best = tl.full((), float("-inf"), dtype=tl.float32)
    place = tl.full((), 0, dtype=tl.int32)
    broken = tl.full((), 0, dtype=tl.int32)
    for base in range(0, VOCABULARY, BLOCK):
        logits, token = _block(row, base, VOCABULARY, BLOCK)
        unordered = logits != logits
        broken = tl.maximum(broken, tl.max(unordered.to(tl.int32), axis=0))
        logits = tl.where(unordered, float("-inf"), logits)
        peak = tl.max(logits, axis=0)
        first = tl.min(tl.where(logits == peak, token, VOCABULARY), axis=0)
        place = tl.where(peak > best, first, place)
        best = tl.maximum(best, peak)
    return tl.where(broken > 0, float("nan"), best), place


@triton.jit
def _count_from(row, key, VOCABULARY, BLOCK: tl.constexpr):
    """Return the number of logits whose key (`_ordered`) is at least `key`."""
    count = tl.full((), 0, dtype=tl.int32)
    for base in range(0, VOCABULARY, BLOCK):
        logits, token = _block(row, base, VOCABULARY, BLOCK)
        reaches = (_ordered(logits) >= key) & (token < VOCABULARY)
        count += tl.sum(reaches.to(tl.int32), axis=0)
    return count


@triton.jit
def _mass_above(row, key, highest, temperature, VOCABULARY, BLOCK: tl.constexpr):
    """Return the sum of exp((logit - highest) / temperature) over logits whose key is greater than
    `key`."""
    mass = tl.full((), 0.0, dtype=tl.float32)
    for base in range(0, VOCABULARY, BLOCK):
        logits, _ = _block(row, base, VOCABULARY, BLOCK)
        weight = tl.exp((logits - highest) / temperature)
        mass += tl.sum(tl.where(_ordered(logits) > key, weight, 0.0), axis=0)
    return mass


@triton.jit
def _top_k(row, top_k, VOCABULARY, BLOCK: tl.constexpr):
    """Return the top_k-th highest key, and the number of logits equal to it that are kept."""
    key = tl.full((), 0, dtype=tl.uint32)
    bit = tl.full((), 0x80000000, dtype=tl.uint32)
    for _ in range(32):
        if _count_from(row, key | bit, VOCABULARY, BLOCK) >= top_k:
            key = key | bit
        bit = bit >> 1
    return key, top_k - _count_from(row, key + 1, VOCABULARY, BLOCK)


@triton.jit
def _top_p(row, floor, ties, top_p, highest, temperature, VOCABULARY, BLOCK: tl.constexpr):
    """Return the key at which the summed weights of the highest logits reach top_p of the total
    weight, and the number of logits equal to it that are kept. The total includes only logits above
    `floor` and `ties` of the logits equal to it."""
    tie_weight = tl.exp((_from_ordered(floor) - highest) / temperature)
    tie_mass = tl.where(tie_weight > 0, tie_weight * ties, 0.0)
    above = _mass_above(row, floor, highest, temperature, VOCABULARY, BLOCK)
    target = top_p * (above + tie_mass)
    key = tl.full((), 0, dtype=tl.uint32)
    bit = tl.full((), 0x80000000, dtype=tl.uint32)
    for _ in range(32):
        candidate = key | bit
        reaches = candidate <= floor
        if not reaches:  # `or` would compute the mass in any case
            mass = _mass_above(row, candidate - 1, highest, temperature, VOCABULARY, BLOCK)
            reaches = mass >= target
        key = tl.where(reaches, candidate, key)
        bit = bit >> 1
    lacking = target - _mass_above(row, key, highest, temperature, VOCABULARY, BLOCK)
    weight = tl.exp((_from_ordered(key) - highest) / temperature)
    wanted = tl.ceil(tl.where(weight > 0, lacking / weight, 1.0))
    wanted = tl.minimum(tl.maximum(wanted, 1.0), VOCABULARY).to(tl.int32)
    return key, tl.where(key == floor, tl.minimum(wanted, ties), wanted)


@triton.jit
def _kept_weights(logits, token, seen, key, ties, least, highest, temperature, VOCABULARY):
    """Return the weights of one block of logits, zero for tokens that a filter drops, and the
    number of logits equal to `key` up to the end of the block. `seen`: this number before the
    block. `ties`: how many logits equal to `key` are kept. `least`: the least weight that is
    kept."""
    ordered = _ordered(logits)
    equal = ((ordered == key) & (token < VOCABULARY)).to(tl.int32)
    rank = seen + tl.cumsum(equal, axis=0)
    kept = (ordered > key) | ((equal > 0) & (rank <= ties))
    weight = tl.exp((logits - highest) / temperature)
    return tl.where(kept & (weight >= least), weight, 0.0), seen + tl.sum(equal, axis=0)


@triton.jit
def _sample_token(
    row, key, ties, least, highest, temperature, number, VOCABULARY, BLOCK: tl.constexpr
):
    """Return the lowest token id at which the cumulative kept weight exceeds number * total weight,
    or the last kept token if rounding leaves none."""
    mass = tl.full((), 0.0, dtype=tl.float32)
    seen = tl.full((), 0, dtype=tl.int32)
    for base in range(0, VOCABULARY, BLOCK):
        logits, token = _block(row, base, VOCABULARY, BLOCK)
        weight, seen = _kept_weights(
            logits, token, seen, key, ties, least, highest, temperature, VOCABULARY
        )
        mass += tl.sum(weight, axis=0)
    target = number * mass
    before = tl.full((), 0.0, dtype=tl.float32)
    seen = tl.full((), 0, dtype=tl.int32)
    chosen = tl.full((), VOCABULARY, dtype=tl.int32)
    last = tl.full((), 0, dtype=tl.int32)
    for base in range(0, VOCABULARY, BLOCK):
        logits, token = _block(row, base, VOCABULARY, BLOCK)
        weight, seen = _kept_weights(
            logits, token, seen, key, ties, least, highest, temperature, VOCABULARY
        )
        reached = before + tl.cumsum(weight, axis=0)
        hit = tl.where((reached > target) & (weight > 0), token, VOCABULARY)
        chosen = tl.minimum(chosen, tl.min(hit, axis=0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0, token, 0), axis=0))
        before += tl.sum(weight, axis=0)
    return tl.where(chosen < VOCABULARY, chosen, last)


@triton.jit
def sample_kernel(
    out,
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * VOCABULARY
    temperature, top_p = tl.load(temperatures + index), tl.load(top_ps + index)
    top_k, min_p = tl.load(top_ks + index), tl.load(min_ps + index)
    highest, token = _highest(row, VOCABULARY, BLOCK)
    usable = tl.abs(highest) < float("inf")  # false for NaN
    if usable and (temperature > 0) and (top_p > 0):
        key = tl.full((), 0, dtype=tl.uint32)
        ties = tl.full((), VOCABULARY, dtype=tl.int32)
        if (top_k > 0) and (top_k < VOCABULARY):
            key, ties = _top_k(row, top_k, VOCABULARY, BLOCK)
        if top_p < 1:
            key, ties = _top_p(row, key, ties, top_p, highest, temperature, VOCABULARY, BLOCK)
        seed = tl.load(seeds + index).to(tl.uint64, bitcast=True)
        number = uniform(seed, tl.load(positions + index).to(tl.uint64, bitcast=True))
        token = _sample_token(
            row, key, ties, min_p, highest, temperature, number, VOCABULARY, BLOCK
        )
    tl.store(out + index, tl.where(usable, token, -1))


def sample(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """See `kernels.sampler_inputs` and `sampling_operands`. `logits: [S, V]` float32, contiguous,
    modified in place if a row has adjustments."""
    count, vocabulary = logits.shape
    barren = adjust_logits(logits, rows) if rows.adjusts else None
    out = torch.empty(count, dtype=torch.int32, device=logits.device)
    launch(
        sample_kernel,
        (count,),
        *(out, logits, *sampling_tensors(rows, logits.device)),
        num_warps=8,
        VOCABULARY=vocabulary,
        BLOCK=min(_BLOCK, power_of_two(vocabulary)),
    )
    return out if barren is None else torch.where(barren == 0, out, barren)


SAMPLE.register(Impl("triton", sample, why_not, invariant_kinds=("exact",)))
