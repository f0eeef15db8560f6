"""The ops `attention`, `bidirectional_attention` and `rounded_attention` over the paged KV cache.
`attention` is causal and takes any mix of prefill chunks and decodes in one call; the others take
whole sequences."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from penstock.kernels.cache_slots import read_slots
from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.rope_cache import single_token
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.step_inputs import LayerCache, MediaRows, StepInputs


def attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Compute causal attention of each token over its own sequence: [T, H * D] -> [T, H * D].

    Query head h reads KV head h // (H / K).

    `window`: 0: no limit; w: only the last w positions; -c: positions are divided into chunks of c,
        and a token sees only its own.
    `sinks`: [H], for each head the score of an additional key that has no value.
    `softcap`: 0: no limit; c: a score s, after `scale`, becomes c * tanh(s / c).

    With `inputs.media.visible`, a token sees that many leading tokens of its sequence, and, of
    these, the tokens with the same number also outside the window.
    """
    visible = None if inputs.media is None else inputs.media.visible
    if visible is not None:
        if sinks is not None:
            raise ValueError("sinks: are not supported together with `visible`")
        return _visible_attention(q, inputs, cache, heads, scale, window, visible, softcap)

    def hidden(position: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        after = key_positions > position
        if window < 0:
            return after | (key_positions < position // -window * -window)
        return after | (key_positions <= position - window) if window else after

    return _attention(q, inputs, cache, heads, scale, hidden, None, sinks, softcap)


def _visible_attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    visible: torch.Tensor,
    softcap: float,
) -> torch.Tensor:
    out = torch.empty_like(q)
    for row, (begin, end) in enumerate(itertools.pairwise(inputs.query_starts.tolist())):
        ends = visible[begin:end]
        first = int(inputs.context_lens[row]) - (end - begin)

        def hidden(
            position: torch.Tensor,
            key_positions: torch.Tensor,
            ends: torch.Tensor = ends,
            first: int = first,
        ) -> torch.Tensor:
            end = ends[position - first]
            if not window:
                return key_positions >= end
            of_keys = torch.full_like(key_positions, -1)
            of_keys[first:] = ends
            passed = (key_positions <= position - window) & (of_keys != end)
            return (key_positions >= end) | passed

        one = dataclasses.replace(
            inputs,
            query_starts=torch.tensor([0, end - begin]),
            context_lens=inputs.context_lens[row : row + 1],
            block_tables=inputs.block_tables[row : row + 1],
        )
        of_row = _attention(q[begin:end], one, cache, heads, scale, hidden, None, softcap=softcap)
        out[begin:end] = of_row
    return out


def bidirectional_attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute attention of each token over all tokens of its own sequence: [T, H * D] -> [T, H *
    D].

    `window`: 0: no limit; w: only positions at a distance below w.
    `bias`: [H, 2 m + 1]; column m + d is added to the score of the key d positions after the token.
        Keys farther away than m use column 0 or 2 m.
    """

    def hidden(position: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        return (key_positions - position).abs() >= window if window else key_positions < 0

    return _attention(q, inputs, cache, heads, scale, hidden, bias)


def rounded_attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
) -> torch.Tensor:
    """Compute `bidirectional_attention`, whose operands an implementation may round to bfloat16."""
    return bidirectional_attention(q, inputs, cache, heads, scale, window)


def _attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Compute attention with a mask. `hidden(position of the token, positions of the keys)` returns
    True for each key that the token must not see."""
    _, kv_heads, dim = heads
    block_size = cache.keys.shape[-1]
    starts = inputs.query_starts.tolist()
    out = torch.empty_like(q)
    for row, context in enumerate(inputs.context_lens.tolist()):
        chunk = slice(starts[row], starts[row + 1])
        key_positions = torch.arange(context, device=q.device)
        block = inputs.block_tables[row, key_positions // block_size].long()
        keys, values = read_slots(cache, block, key_positions % block_size, q.dtype)
        grouped = q[chunk].view(-1, kv_heads, q.shape[1] // (kv_heads * dim), dim)
        scores = torch.einsum("tkgd,ckd->tkgc", grouped, keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        position = key_positions[context - len(grouped) :, None, None, None]
        if bias is not None:
            most = bias.shape[1] // 2
            column = most + (key_positions - position[:, 0, 0]).clamp(-most, most)  # [t, c]
            scores += bias.view(kv_heads, -1, bias.shape[1])[..., column].permute(2, 0, 1, 3)
        scores = scores.masked_fill(hidden(position, key_positions), float("-inf"))
        if sinks is not None:
            sink = sinks.to(scores.dtype).view(kv_heads, -1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, sink), dim=-1)
        weights = scores.softmax(dim=-1)[..., :context]
        out[chunk] = torch.einsum("tkgc,ckd->tkgd", weights, values).reshape(len(grouped), -1)
    return out


def attention_inputs(
    chunks: Sequence[tuple[int, int]],
    heads: tuple[int, int, int],
    block_size: int,
    dtype: torch.dtype,
    window: int = 0,
    farthest: int = 0,
    with_sinks: bool = False,
    blocks: Sequence[tuple[int, int, int]] = (),
    softcap: float = 0.0,
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        q_heads, kv_heads, dim = heads
        step = source.step(chunks, block_size)
        if blocks:
            step = dataclasses.replace(step, media=_media_of(step, blocks))
        bias = source.normal(q_heads, 2 * farthest + 1) if farthest else None
        sinks = None
        if with_sinks:  # from sinks with all of the weight to sinks with none
            sinks = torch.from_numpy(
                source.numpy.permutation(np.linspace(12, -12, q_heads))
            ).float()
        return {
            "sinks": sinks,
            "bias": bias,
            # Twice the usual spread gives peaked softmax weights, like those of trained models.
            "q": 2 * source.normal(len(step.tokens), q_heads * dim),
            "inputs": step,
            "cache": source.cache(step, block_size, (kv_heads, dim), dtype),
            "heads": heads,
            "scale": dim**-0.5,
            "window": window,
            "softcap": softcap,
        }

    return make_inputs


def _media_of(
    step: StepInputs[torch.Tensor], blocks: Sequence[tuple[int, int, int]]
) -> MediaRows[torch.Tensor]:
    """Return media whose tokens see each other. `blocks`: the sequence, the first token in its
    chunk and the number of tokens of each item."""
    visible = step.positions + 1
    for row, start, length in blocks:
        first = int(step.query_starts[row]) + start
        visible[first : first + length] = int(step.positions[first]) + length
    index = torch.full_like(step.tokens, -1)
    return MediaRows(index=index, rows=torch.zeros(1, 8), visible=visible)


def attention_alone(inputs: Inputs, index: int) -> dict[str, Any]:
    if inputs["inputs"].media is not None:
        return _rest_of_row(inputs, index)
    row = inputs["q"][index : index + 1]
    return {**inputs, "q": row, "inputs": single_token(inputs["inputs"], index)}


def _rest_of_row(inputs: Inputs, index: int) -> dict[str, Any]:
    """Return the inputs of a step that consists of token `index` and the tokens after it in its
    sequence."""
    step = inputs["inputs"]
    row = int((step.query_starts[1:] <= index).sum())
    rest = slice(index, int(step.query_starts[row + 1]))
    of_row = slice(row, row + 1)
    media = step.media
    if media is not None and media.visible is not None:
        media = dataclasses.replace(media, index=media.index[rest], visible=media.visible[rest])
    remaining = dataclasses.replace(
        step,
        tokens=step.tokens[rest],
        positions=step.positions[rest],
        slots=step.slots[rest],
        query_starts=torch.tensor([0, rest.stop - rest.start], dtype=torch.int32),
        context_lens=step.context_lens[of_row],
        block_tables=step.block_tables[of_row],
        media=media,
    )
    return {**inputs, "q": inputs["q"][rest], "inputs": remaining}


def _bidirectional_cost(inputs: Inputs) -> Cost:
    q_heads, kv_heads, dim = inputs["heads"]
    step = inputs["inputs"]
    context = step.context_lens.long()
    seen = int((step.query_starts.diff() * context).sum())
    cached = 2 * kv_heads * dim * inputs["cache"].keys.element_size() * int(context.sum())
    return Cost(cached + 8 * inputs["q"].numel(), 4 * q_heads * dim * seen)


def attention_cost(inputs: Inputs) -> Cost:
    q_heads, kv_heads, dim = inputs["heads"]
    step = inputs["inputs"]
    seen = step.positions.long() + 1
    context = step.context_lens.long()
    if inputs["window"] > 0:
        seen, context = seen.clamp(max=inputs["window"]), context.clamp(max=inputs["window"])
    cached = 2 * kv_heads * dim * inputs["cache"].keys.element_size() * int(context.sum())
    return Cost(cached + 8 * inputs["q"].numel(), 4 * q_heads * dim * int(seen.sum()))


def _sinks(
    name: str,
    kind: str,
    chunks: Sequence[tuple[int, int]],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    window: int = 0,
) -> Case:
    return Case(
        f"sinks-{name}", kind, attention_inputs(chunks, heads, 16, dtype, window, with_sinks=True)
    )


def _capped(
    name: str,
    kind: str,
    chunks: Sequence[tuple[int, int]],
    heads: tuple[int, int, int],
    window: int = 0,
    with_sinks: bool = False,
    blocks: Sequence[tuple[int, int, int]] = (),
) -> Case:
    """Return a case whose scores, of size 2, are limited to a cap that changes most of them."""
    dtype = torch.float16 if kind == "f16" else torch.float32
    make_inputs = attention_inputs(chunks, heads, 16, dtype, window, 0, with_sinks, blocks, 2.5)
    return Case(f"softcap-{name}", kind, make_inputs)


def _visible(
    name: str,
    kind: str,
    chunks: Sequence[tuple[int, int]],
    heads: tuple[int, int, int],
    blocks: Sequence[tuple[int, int, int]],
    window: int = 0,
) -> Case:
    dtype = torch.float16 if kind == "f16" else torch.float32
    return Case(
        f"visible-{name}", kind, attention_inputs(chunks, heads, 16, dtype, window, blocks=blocks)
    )


MIXED = ((0, 5), (30, 1), (15, 3), (16, 1), (0, 1), (70, 20))
# Contexts on both sides of the split size.
LONG = ((599, 1), (255, 1), (1, 1), (256, 1))
# More work units than an emulated grid has programs; some contexts are split.
MANY = tuple((length, 1) for length in (*range(0, 40, 3), 300, 90, 513, 7))
_WHOLE = ((0, 5), (0, 1), (0, 64), (0, 33), (0, 300))
_F16, _F32 = torch.float16, torch.float32

_TOLERANCE = {
    "f32": Tolerance(2e-5, 2e-5),
    "f16": Tolerance(3e-3, 3e-3),
    # All operands are rounded to bf16. The relative error of a rounding is at most 2^-8, typically
    # 1.6e-3. Scores of size 2 then typically have an error of 5e-3, and softmax weights the same
    # relative error. Weights and values are rounded once more.
    "f16-in-bf16": Tolerance(3e-2, 2**-7),
    "f16-by-tiles": Tolerance(3e-2, 2**-7),
}

ATTENTION = Op(
    name="attention",
    signature=(
        "q float [T, H*D]; inputs StepInputs; cache LayerCache; heads Heads; real scale; "
        "integer window; optional sinks float32 [H]; real softcap; write out float [T, H*D]"
    ),
    reference=attention,
    cases=(
        Case("first-token", "f32", attention_inputs(((0, 1),), (4, 2, 32), 16, _F32)),
        Case(
            "decode-f16", "f16", attention_inputs(((99, 1), (15, 1), (0, 1)), (9, 3, 64), 16, _F16)
        ),
        Case("mixed-f32", "f32", attention_inputs(MIXED, (9, 3, 64), 16, _F32)),
        Case("mixed-f16", "f16", attention_inputs(MIXED, (9, 3, 64), 16, _F16)),
        Case("prompt-f16", "f16", attention_inputs(((0, 150),), (4, 2, 64), 16, _F16)),
        Case("window-f32", "f32", attention_inputs(MIXED, (4, 1, 32), 16, _F32, window=9)),
        Case(
            "window-f16",
            "f16",
            attention_inputs(((200, 1), (60, 40)), (4, 4, 64), 16, _F16, window=64),
        ),
        Case("multi-query-128", "f32", attention_inputs(MIXED, (12, 2, 128), 16, _F32)),
        Case("one-group-96", "f32", attention_inputs(((17, 4), (2, 1)), (2, 2, 96), 16, _F32)),
        Case("wide-256", "f16", attention_inputs(((20, 3), (33, 1)), (4, 1, 256), 16, _F16)),
        Case("block-32", "f32", attention_inputs(MIXED, (4, 2, 64), 32, _F32)),
        Case("decode-long", "f32", attention_inputs(LONG, (4, 2, 32), 16, _F32)),
        Case("chunks-f32", "f32", attention_inputs(MIXED, (4, 1, 32), 16, _F32, window=-13)),
        Case(
            "chunks-f16",
            "f16",
            attention_inputs(((60, 150), (128, 1)), (4, 2, 64), 16, _F16, window=-64),
        ),
        Case(
            "chunks-decode-long", "f16", attention_inputs(LONG, (8, 2, 64), 16, _F16, window=-300)
        ),
        Case("decode-long-window", "f16", attention_inputs(LONG, (8, 2, 64), 16, _F16, window=300)),
        Case("decode-many", "f16", attention_inputs(MANY, (4, 2, 64), 16, _F16)),
        Case("decode-long-128", "f16", attention_inputs((*LONG, (1100, 1)), (8, 2, 128), 32, _F16)),
        Case(
            "prompt-window-f16",
            "f16",
            attention_inputs(((137, 190), (0, 40)), (6, 2, 128), 32, _F16, window=150),
        ),
        Case("mixed-long", "f16", attention_inputs((*LONG, (290, 70)), (4, 1, 64), 16, _F16)),
        _sinks("mixed-f32", "f32", MIXED, (9, 3, 64), _F32),
        _sinks("own-heads-f16", "f16", MIXED, (4, 4, 64), _F16),
        _sinks("decode-long", "f16", LONG, (16, 2, 64), _F16),
        _sinks("decode-window", "f16", ((200, 1), (60, 1), (599, 1)), (16, 2, 64), _F16, 128),
        _sinks("prompt-window", "f16", ((0, 300), (137, 190)), (16, 2, 64), _F16, 128),
        _visible("one-image", "f32", ((0, 100),), (4, 2, 32), ((0, 20, 64),)),
        _visible(
            "images-f16",
            "f16",
            ((70, 150), (0, 1), (33, 5), (99, 1)),
            (8, 4, 64),
            ((0, 3, 70), (0, 80, 64), (2, 0, 4)),
        ),
        _visible("few-long", "f16", ((500, 5), (300, 1)), (4, 1, 64), ((0, 1, 3),)),
        _visible("window", "f32", ((60, 150), (70, 2)), (4, 2, 64), ((0, 10, 100),), 130),
        _visible("beyond-window", "f32", ((60, 390), (70, 2)), (4, 2, 64), ((0, 10, 300),), 40),
        _visible("wide-image", "f16", ((0, 330),), (2, 1, 256), ((0, 5, 290),), 280),
        _sinks("mixed-long", "f16", (*LONG, (290, 70)), (8, 1, 64), _F16),
        _capped("mixed-f32", "f32", MIXED, (9, 3, 64)),
        _capped("own-heads-f16", "f16", MIXED, (4, 4, 64)),
        _capped("prompt-window", "f16", ((0, 300), (137, 190)), (8, 4, 128), 128),
        _capped("decode-long", "f16", LONG, (8, 2, 64)),
        _capped("decode-window", "f16", ((200, 1), (60, 1), (599, 1)), (8, 4, 256), 128),
        _capped("sinks", "f32", (*LONG, (290, 70)), (8, 2, 64), 0, True),
        _capped("visible", "f32", ((60, 150), (70, 2)), (4, 2, 64), 130, blocks=((0, 10, 100),)),
    ),
    benchmarks=tuple(
        Case(f"{model}-{name}", "f16", attention_inputs(chunks, heads, 16, _F16))
        for model, heads in (("smollm2", (9, 3, 64)), ("qwen1.5b", (12, 2, 128)))
        for name, chunks in (
            ("decode-1x512", ((511, 1),)),
            ("decode-1x8192", ((8191, 1),)),
            ("decode-16x512", ((511, 1),) * 16),
            ("prompt-512", ((0, 512),)),
        )
    ),
    tolerance=_TOLERANCE,
    cost=attention_cost,
    order=("cuda", "triton", "native", "reference"),
    native_kernels=("paged_attention", "sink_attention", "visible_attention"),
    alone=attention_alone,
)
BIDIRECTIONAL_ATTENTION = Op(
    name="bidirectional_attention",
    signature=(
        "q float [T, H*D]; inputs StepInputs; cache LayerCache; heads Heads; real scale; "
        "integer window; optional bias float32 [H, distances]; write out float [T, H*D]"
    ),
    reference=bidirectional_attention,
    cases=(
        Case("one-token", "f32", attention_inputs(((0, 1),), (4, 4, 32), 16, _F32)),
        Case("whole-f32", "f32", attention_inputs(_WHOLE, (4, 4, 32), 16, _F32)),
        Case("whole-f16", "f16", attention_inputs(_WHOLE, (9, 3, 64), 16, _F16)),
        Case("ends-f32", "f32", attention_inputs(MIXED, (4, 2, 64), 16, _F32)),
        Case("window-f32", "f32", attention_inputs(_WHOLE, (4, 1, 32), 16, _F32, window=9)),
        Case(
            "wide-window-f32",
            "f32",
            attention_inputs(((0, 700),), (2, 2, 64), 16, _F32, window=280),
        ),
        Case("one-group-96", "f32", attention_inputs(((0, 70), (0, 2)), (2, 2, 96), 16, _F32)),
        Case("bias-f32", "f32", attention_inputs(_WHOLE, (4, 4, 32), 16, _F32, farthest=127)),
        Case("short-bias-f16", "f16", attention_inputs(_WHOLE, (4, 2, 64), 16, _F16, farthest=3)),
        Case(
            "bias-window-f32", "f32", attention_inputs(MIXED, (4, 1, 32), 16, _F32, 40, farthest=60)
        ),
    ),
    benchmarks=(
        Case(
            "mpnet-2x256",
            "f32",
            attention_inputs(((0, 256),) * 2, (12, 12, 64), 16, _F32, farthest=127),
        ),
        Case("minilm-16x32", "f32", attention_inputs(((0, 32),) * 16, (12, 12, 32), 16, _F32)),
        Case("minilm-2x256", "f32", attention_inputs(((0, 256),) * 2, (12, 12, 32), 16, _F32)),
    ),
    tolerance=_TOLERANCE,
    cost=_bidirectional_cost,
    order=("triton", "native", "reference"),
    native_kernels=("bidirectional_attention", "biased_attention"),
    alone=_rest_of_row,
)
ROUNDED_ATTENTION = Op(
    name="rounded_attention",
    signature=(
        "q float [T, H*D]; inputs StepInputs; cache LayerCache; heads Heads; real scale; "
        "integer window; write out float [T, H*D]"
    ),
    reference=rounded_attention,
    cases=(
        Case("one-token", "f16", attention_inputs(((0, 1),), (4, 4, 32), 16, _F16)),
        Case("own-heads", "f16", attention_inputs(_WHOLE, (4, 4, 64), 16, _F16)),
        Case("own-heads-72", "f16", attention_inputs(((0, 300), (0, 70)), (2, 2, 72), 16, _F16)),
        Case("own-heads-80-window", "f16", attention_inputs(MIXED, (2, 2, 80), 16, _F16, window=9)),
        Case("shared-heads", "f16", attention_inputs(_WHOLE, (9, 3, 64), 16, _F16)),
        Case("f32", "f32", attention_inputs(_WHOLE, (4, 4, 32), 16, _F32)),
    ),
    benchmarks=(
        Case("siglip-1x1024", "f16", attention_inputs(((0, 1024),), (12, 12, 64), 16, _F16)),
    ),
    tolerance=_TOLERANCE,
    cost=_bidirectional_cost,
    order=("triton", "native", "reference"),
    alone=_rest_of_row,
)
