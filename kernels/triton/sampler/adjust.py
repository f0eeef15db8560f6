"""Adjusts logits before sampling: one program per row, one stage per feature.

A stage lists each token once, so that no two lanes of a program write the same logit; a barrier
separates the stages. `adjust_logits` reads lists of tokens. `adjust_rows` reads the persistent
batch on the device (`kernels.persistent_batch`): a row without adjustments costs its program a few
loads, and a row with penalties reads its token counts for the whole vocabulary.
"""

from __future__ import annotations

import torch

from penstock.kernels.ops.adjust import ADJUST_LOGITS
from penstock.kernels.ops.adjust_rows import ADJUST_ROWS
from penstock.kernels.persistent_batch import Adjustments
from penstock.kernels.registry import Impl
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.triton.compile.launch import ceil_div, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.sampler.sampling_operands import adjust_tensors

_LISTED, _WHOLE = 256, 4096  # tokens that a stage reads at a time


@triton.jit
def _saturated(after, before):
    """Return `after`, or the largest float32 of its sign if `after` is infinite and `before` is
    finite."""
    LARGEST: tl.constexpr = 3.4028234663852886e38
    finite = tl.abs(before) <= LARGEST  # false for NaN
    return tl.where(finite, tl.minimum(tl.maximum(after, -LARGEST), LARGEST), after)


@triton.jit
def _listed(tokens, base, end, BLOCK: tl.constexpr):
    """Return BLOCK indices of a list from `base` on, the mask of the indices below `end`, and the
    tokens at these indices."""
    place = base + tl.arange(0, BLOCK)
    inside = place < end
    return place, inside, tl.load(tokens + place, mask=inside, other=0)


@triton.jit
def add_span(row, tokens, values, begin, end, sign, BLOCK: tl.constexpr):
    """Add `sign` times the values begin .. end - 1 of a list to the logits of the listed tokens."""
    for base in range(begin, end, BLOCK):
        place, inside, token = _listed(tokens, base, end, BLOCK)
        before = tl.load(row + token, mask=inside, other=0.0)
        after = before + sign * tl.load(values + place, mask=inside, other=0.0)
        tl.store(row + token, _saturated(after, before), mask=inside)


@triton.jit
def _add(row, index, starts, tokens, values, sign, BLOCK: tl.constexpr):
    begin, end = tl.load(starts + index), tl.load(starts + index + 1)
    add_span(row, tokens, values, begin, end, sign, BLOCK)


@triton.jit
def penalized(before, count, presence, frequency, repetition):
    """Return the logits `before` of seen tokens after penalties. `count`: occurrences in the
    answer, 0 for a token that only the prompt has."""
    cost = presence + frequency * count.to(tl.float32)
    x = tl.where(count > 0, _saturated(before - cost, before), before)
    x = tl.where(x > 0, x / repetition, x * repetition)
    return _saturated(x, before)


@triton.jit
def _penalize(
    row, index, starts, tokens, counts, presence, frequency, repetition, BLOCK: tl.constexpr
):
    end = tl.load(starts + index + 1)
    once, often = tl.load(presence + index), tl.load(frequency + index)
    factor = tl.load(repetition + index)
    for base in range(tl.load(starts + index), end, BLOCK):
        place, inside, token = _listed(tokens, base, end, BLOCK)
        before = tl.load(row + token, mask=inside, other=0.0)
        count = tl.load(counts + place, mask=inside, other=0)
        x = penalized(before, count, once, often, factor)
        tl.store(row + token, x, mask=inside)


@triton.jit
def _mask(row, words, VOCABULARY, BLOCK: tl.constexpr):
    """Set the logits of forbidden tokens to -inf and return the number of allowed tokens."""
    allowed = tl.full((), 0, dtype=tl.int32)
    for base in range(0, VOCABULARY, BLOCK):
        token = base + tl.arange(0, BLOCK)
        inside = token < VOCABULARY
        word = tl.load(words + token // 32, mask=inside, other=0)
        bit = (word >> (token % 32)) & 1
        allowed += tl.sum(bit, axis=0)
        tl.store(row + token, float("-inf"), mask=inside & (bit == 0))
    return allowed


@triton.jit
def adjust_logits_kernel(
    logits,
    bias_starts,
    bias_tokens,
    bias_values,
    seen_starts,
    seen_tokens,
    seen_counts,
    presence,
    frequency,
    repetition,
    dry_starts,
    dry_tokens,
    dry_values,
    masks,
    mask_of,
    barren,
    VOCABULARY: tl.constexpr,
    LISTED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * VOCABULARY
    _add(row, index, bias_starts, bias_tokens, bias_values, 1.0, LISTED)
    tl.debug_barrier()
    _penalize(
        row,
        index,
        seen_starts,
        seen_tokens,
        seen_counts,
        presence,
        frequency,
        repetition,
        LISTED,
    )
    tl.debug_barrier()
    _add(row, index, dry_starts, dry_tokens, dry_values, -1.0, LISTED)
    tl.debug_barrier()
    mask = tl.load(mask_of + index).to(tl.int64)
    allowed = tl.full((), 1, dtype=tl.int32)
    if mask >= 0:
        WORDS: tl.constexpr = (VOCABULARY + 31) // 32
        allowed = _mask(row, masks + mask * WORDS, VOCABULARY, WHOLE)
    tl.store(barren + index, tl.where(allowed > 0, 0, -2))


def adjust_logits(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """See `kernels.sampler_inputs` and `sampling_operands`. `logits: [S, V]` float32, contiguous,
    modified in place. Returns [S] int32: -2 for a row whose mask allows no token, otherwise 0."""
    count, vocabulary = logits.shape
    barren = torch.empty(count, dtype=torch.int32, device=logits.device)
    lists = adjust_tensors(count, ceil_div(vocabulary, 32), rows, logits.device)
    launch(
        adjust_logits_kernel,
        (count,),
        *(logits, *lists, barren),
        **_constants(vocabulary),
    )
    return barren


@triton.jit
def _penalize_seen(row, counts, presence, frequency, repetition, VOCABULARY, BLOCK: tl.constexpr):
    for base in range(0, VOCABULARY, BLOCK):
        token = base + tl.arange(0, BLOCK)
        seen = tl.load(counts + token, mask=token < VOCABULARY, other=0)
        before = tl.load(row + token, mask=seen > 0, other=0.0)
        x = penalized(before, seen - 1, presence, frequency, repetition)
        tl.store(row + token, x, mask=seen > 0)


@triton.jit
def _suppress(row, tokens, count, VOCABULARY, BLOCK: tl.constexpr):
    for base in range(0, count, BLOCK):
        place = base + tl.arange(0, BLOCK)
        token = tl.load(tokens + place, mask=place < count, other=-1)
        tl.store(row + token, float("-inf"), mask=(token >= 0) & (token < VOCABULARY))


@triton.jit(do_not_specialize=["bias_width", "suppressed_width"])
def adjust_rows_kernel(
    logits,
    rows,
    positions,
    presence,
    frequency,
    repetition,
    num_biases,
    num_suppressed,
    suppressed_until,
    counts,
    bias_tokens,
    bias_values,
    suppressed,
    bias_width,
    suppressed_width,
    VOCABULARY: tl.constexpr,
    LISTED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * VOCABULARY
    own = tl.load(rows + index).to(tl.int64)
    biases = tl.load(num_biases + own)
    first = own * bias_width
    add_span(row, bias_tokens + first, bias_values + first, 0, biases, 1.0, LISTED)
    tl.debug_barrier()
    once, often = tl.load(presence + own), tl.load(frequency + own)
    factor = tl.load(repetition + own)
    if (once != 0) | (often != 0) | (factor != 1):
        _penalize_seen(row, counts + own * VOCABULARY, once, often, factor, VOCABULARY, WHOLE)
    tl.debug_barrier()
    if tl.load(positions + index) < tl.load(suppressed_until + own):
        tokens, count = suppressed + own * suppressed_width, tl.load(num_suppressed + own)
        _suppress(row, tokens, count, VOCABULARY, LISTED)


def adjust_rows(
    logits: torch.Tensor,
    adjust: Adjustments[torch.Tensor],
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """See `kernels.ops.adjust_rows`. `logits: [S, V]` float32, contiguous; `positions` int64."""
    count, vocabulary = logits.shape
    launch(
        adjust_rows_kernel,
        (count,),
        *(logits, rows, positions, adjust.presence, adjust.frequency, adjust.repetition),
        *(adjust.num_biases, adjust.num_suppressed, adjust.suppressed_until, adjust.counts),
        *(adjust.bias_tokens, adjust.bias_values, adjust.suppressed),
        *(adjust.bias_tokens.shape[1], adjust.suppressed.shape[1]),
        **_constants(vocabulary),
    )


def _constants(vocabulary: int) -> dict[str, int]:
    """Return the warps and the constants with which both kernels are launched."""
    whole = min(_WHOLE, power_of_two(vocabulary))
    return {"num_warps": 8, "VOCABULARY": vocabulary, "LISTED": _LISTED, "WHOLE": whole}


ADJUST_LOGITS.register(Impl("triton", adjust_logits, why_not, invariant_kinds=("float",)))
ADJUST_ROWS.register(Impl("triton", adjust_rows, why_not, invariant_kinds=("float",)))
