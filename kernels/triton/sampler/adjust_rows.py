"""What a device keeps of its rows changes their logits: one program a place that is drawn from.

A row without anything costs its program a few loads. The counts of a row with penalties are read
whole; a barrier divides the stages, since lanes of different stages meet.
"""

from __future__ import annotations

import torch

from penstock.kernels.ops.adjust_rows import ADJUST_ROWS
from penstock.kernels.persistent_batch import Adjustments
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.sampler.adjust import LISTED, WHOLE, add_span, penalized


@triton.jit
def _penalize(row, counts, presence, frequency, repetition, VOCABULARY, BLOCK: tl.constexpr):
    for base in range(0, VOCABULARY, BLOCK):
        token = base + tl.arange(0, BLOCK)
        seen = tl.load(counts + token, mask=token < VOCABULARY, other=0)
        before = tl.load(row + token, mask=seen > 0, other=0.0)
        x = penalized(before, seen - 1, presence, frequency, repetition)
        tl.store(row + token, x, mask=seen > 0)


@triton.jit
def _hold_back(row, tokens, count, VOCABULARY, BLOCK: tl.constexpr):
    for base in range(0, count, BLOCK):
        place = base + tl.arange(0, BLOCK)
        token = tl.load(tokens + place, mask=place < count, other=-1)
        tl.store(row + token, float("-inf"), mask=(token >= 0) & (token < VOCABULARY))


@triton.jit(do_not_specialize=["bias_width", "held_width"])
def adjust_rows_kernel(
    logits,
    rows,
    positions,
    presence,
    frequency,
    repetition,
    num_biases,
    num_held,
    held_until,
    counts,
    bias_tokens,
    bias_values,
    held,
    bias_width,
    held_width,
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
        _penalize(row, counts + own * VOCABULARY, once, often, factor, VOCABULARY, WHOLE)
    tl.debug_barrier()
    if tl.load(positions + index) < tl.load(held_until + own):
        tokens, count = held + own * held_width, tl.load(num_held + own)
        _hold_back(row, tokens, count, VOCABULARY, LISTED)


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
        *(adjust.num_biases, adjust.num_held, adjust.held_until, adjust.counts),
        *(adjust.bias_tokens, adjust.bias_values, adjust.held),
        *(adjust.bias_tokens.shape[1], adjust.held.shape[1]),
        num_warps=8,
        VOCABULARY=vocabulary,
        LISTED=LISTED,
        WHOLE=min(WHOLE, power_of_two(vocabulary)),
    )


ADJUST_ROWS.register(Impl("triton", adjust_rows, why_not, invariant_kinds=("float",)))
