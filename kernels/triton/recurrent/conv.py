"""Depthwise causal convolutions over the tokens of each sequence, with the last inputs as state.

A program computes some channels of a tile of one chunk's tokens; tiles are placed as in
`paged_attention.attention`. In a step of one token per row the same program writes the state. In
other steps a second launch does, because the ring holds the inputs that the first tokens of the
chunk read. The floor of a step is 4 bytes per token and channel in bfloat16 (6 with gates), and
8 L bytes of state per row and channel: memory, not arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.kernels.ops.recurrent import CAUSAL_CONV, GATED_CONV
from penstock.kernels.recurrent_state import ConvState
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton.compile.launch import ceil_div, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.paged_attention.attention import _chunk_of
from penstock.kernels.triton.recurrent.state_chunk import chunk_of, one_token_rows, states_of

_CHANNELS = 512  # of a program
_TOKENS = 16  # of a program; at least L - 1


@triton.jit
def _known_input(x, token, channel, mask, CHANNELS: tl.constexpr, GATED: tl.constexpr):
    """Return the inputs of the convolution at tokens of the step: x, or b * v for the parts
    [b | c | v] of x if GATED."""
    if GATED:
        source = x + token.to(tl.int64) * (3 * CHANNELS) + channel
        b = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        return b * tl.load(source + 2 * CHANNELS, mask=mask, other=0.0).to(tl.float32)
    else:
        source = x + token.to(tl.int64) * CHANNELS + channel
        return tl.load(source, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _earlier_input(
    recent, saved, start, source, rows, ring, position, channel, inside,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Return the inputs at positions before the chunk that starts at `start`, and zeros for other
    positions and for positions before the sequence."""
    slot = source + position * 0  # of position's shape: the interpreter cannot "and" scalars
    live = inside & (position < start) & (position >= 0) & (slot >= 0) & (slot < rows)
    place = (slot.to(tl.int64) * ring + position % ring) * CHANNELS + channel
    value = tl.load(recent + place, mask=live, other=0.0)
    held = inside & (position < start) & (slot >= rows)
    place = (slot - rows).to(tl.int64) * (TAPS - 1) + position - start + TAPS - 1
    return value + tl.load(saved + place * CHANNELS + channel, mask=held, other=0.0)


@triton.jit
def _input_at(
    x, recent, saved, token, start, source, rows, ring, position, channel, inside,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Return the inputs at positions before or in the chunk whose first token has index `token` and
    position `start`."""
    own = inside & (position >= start)
    value = _known_input(x, token + position - start, channel, own, CHANNELS, GATED)
    return value + _earlier_input(
        recent, saved, start, source, rows, ring, position, channel, inside, CHANNELS, TAPS
    )


@triton.jit(do_not_specialize=["count", "rows", "ring"])
def conv_kernel(
    out, x, weight, bias, recent, saved, starts, contexts, sources, targets, saves, saves_after,
    count, rows, ring,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, TOKENS: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one chunk. With TOKENS = 1 every chunk has one token, and the program also
    writes the state.

    `count`: rows of the step. `rows`, `ring`: rows and inputs per row of `recent`.
    GATED: x has the parts [b | c | v]; the input is b * v, and the result is multiplied by c.
    """
    tile = tl.program_id(0)
    row = tile if TOKENS == 1 else _chunk_of(starts, tile, count, TOKENS)
    token, start, stop = chunk_of(starts, contexts, row)
    source = tl.load(sources + row)
    first = token + (tile - (token // TOKENS + row)) * TOKENS
    if TOKENS == 1:
        first = token
    if (stop > 0) & (first < token + stop - start):
        channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
        position = start + first - token + tl.arange(0, TOKENS)[:, None]
        inside = (channel < CHANNELS) & (position < stop)
        target = tl.load(targets + row)
        after = tl.load(saves_after + row)
        save = tl.load(saves + row)
        kept = recent + target.to(tl.int64) * ring * CHANNELS + channel
        snapshot = saved + (save - rows).to(tl.int64) * (TAPS - 1) * CHANNELS + channel
        total = tl.zeros((TOKENS, BLOCK), dtype=tl.float32)
        if BIASED:
            total += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0)
        value = total
        for tap in tl.static_range(TAPS):
            at = position - (TAPS - 1) + tap
            own = inside & (at >= start)
            value = _known_input(x, token + at - start, channel, own, CHANNELS, GATED)
            if first == token:  # other tiles start at least L - 1 tokens after the chunk's first
                value += _earlier_input(
                    recent, saved, start, source, rows, ring, at, channel, inside, CHANNELS, TAPS
                )
            factor = tl.load(weight + channel * TAPS + tap, mask=channel < CHANNELS, other=0.0)
            total = tl.fma(value, factor + tl.zeros_like(value), total)
            if TOKENS == 1:
                place = tap - after + position * 0  # in the snapshot
                held = inside & (save + position * 0 >= 0) & (place >= 0) & (place < TAPS - 1)
                tl.store(snapshot + place * CHANNELS, value, mask=held)
                copied = inside & (source + position * 0 != target) & (at >= 0) & (at < start)
                tl.store(kept + at % ring * CHANNELS, value, mask=copied)
        if TOKENS == 1:
            tl.debug_barrier()  # the ring has been read
            tl.store(kept + position % ring * CHANNELS, value, mask=inside)
        place = (token + position - start).to(tl.int64)
        if GATED:
            gate = tl.load(x + place * (3 * CHANNELS) + CHANNELS + channel, mask=inside, other=0.0)
            total *= gate.to(tl.float32)
        else:
            total = total / (1.0 + tl.exp(-total))
        tl.store(out + place * CHANNELS + channel, total, mask=inside)


@triton.jit(do_not_specialize=["rows", "ring"])
def conv_state_kernel(
    x, recent, saved, starts, contexts, sources, targets, saves, saves_after, rows, ring,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, LINES: tl.constexpr,
    RING: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Write the state after the chunk of one row, for some channels. LINES, RING: powers of two
    that are at least TAPS - 1 and `ring`."""
    row = tl.program_id(0)
    token, start, stop = chunk_of(starts, contexts, row)
    if (stop > 0) & (stop > start):
        channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
        source, target = tl.load(sources + row), tl.load(targets + row)
        save, after = tl.load(saves + row), tl.load(saves_after + row)
        line = tl.arange(0, LINES)[:, None]
        held = (channel < CHANNELS) & (line < TAPS - 1) & (save + line * 0 >= 0)
        snapshot = _input_at(
            x, recent, saved, token, start, source, rows, ring, start + after - (TAPS - 1) + line,
            channel, held, CHANNELS, TAPS, GATED,
        )  # fmt: skip
        position = stop - 1 - tl.arange(0, RING)[:, None]
        oldest = start - tl.where(source == target, 0, TAPS - 1)
        kept = (channel < CHANNELS) & (stop - position <= ring)
        kept &= position >= tl.maximum(oldest, 0)
        last = _input_at(
            x, recent, saved, token, start, source, rows, ring, position, channel, kept,
            CHANNELS, TAPS, GATED,
        )  # fmt: skip
        tl.debug_barrier()  # the ring has been read
        place = (save - rows).to(tl.int64) * (TAPS - 1) + line
        tl.store(saved + place * CHANNELS + channel, snapshot, mask=held)
        place = target.to(tl.int64) * ring + tl.maximum(position, 0) % ring
        tl.store(recent + place * CHANNELS + channel, last, mask=kept)


def _convolution(gated: int) -> Callable[..., torch.Tensor]:
    def convolution(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        inputs: StepInputs[torch.Tensor],
        state: ConvState[torch.Tensor],
    ) -> torch.Tensor:
        """See `RecurrentOps.causal_conv` and `gated_conv`. All tensors are contiguous."""
        states, tokens = states_of(inputs), x.shape[0]
        channels, taps = weight.shape
        out = x.new_empty(tokens, channels)
        rows, ring = state.recent.shape[:2]
        count = inputs.context_lens.shape[0]
        one = one_token_rows(tokens, inputs)
        blocks = ceil_div(channels, _CHANNELS)
        chunks = (inputs.query_starts, inputs.context_lens, states.source, states.target)
        saves = (states.save, states.save_after)
        extents = {"CHANNELS": channels, "BLOCK": _CHANNELS, "TAPS": taps, "GATED": gated}
        launch(
            conv_kernel,
            (count if one else tokens // _TOKENS + count, blocks),
            *(out, x, weight, x if bias is None else bias, state.recent, state.saved),
            *(*chunks, *saves, count, rows, ring),
            num_warps=4 if one else 8,
            TOKENS=1 if one else _TOKENS,
            BIASED=int(bias is not None),
            **extents,
        )
        if not one:
            launch(
                conv_state_kernel,
                (count, blocks),
                *(x, state.recent, state.saved, *chunks, *saves, rows, ring),
                LINES=power_of_two(taps - 1),
                RING=power_of_two(ring),
                **extents,
            )
        return out

    return convolution


CAUSAL_CONV.register(Impl("triton", _convolution(0), why_not))
GATED_CONV.register(Impl("triton", _convolution(1), why_not))
