"""Attention at the shapes of served models: steps with mixed lengths, and their results in
float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.device.machine import Bench
from bench.device.model_shapes import Shape
from bench.device.ops import step_of
from penstock.kernels.step_inputs import LayerCache, StepInputs

Chunks = tuple[tuple[int, int], ...]
"""One row: tokens cached before the step, and tokens that the step computes."""

_LARGEST = 448.0  # largest value of float8_e4m3fn


@dataclass(frozen=True, slots=True)
class RandomAttention:
    """One call of the op `attention`, with inputs on the device."""

    q: torch.Tensor  # [T, H * D]
    inputs: StepInputs[torch.Tensor]
    cache: LayerCache[torch.Tensor]
    heads: tuple[int, int, int]  # H, K, D
    window: int
    sinks: torch.Tensor | None

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `Ops.attention`."""
        scale = self.heads[2] ** -0.5
        return self.q, self.inputs, self.cache, self.heads, scale, self.window, self.sinks

    def truth(self) -> torch.Tensor:
        """Compute the result in float32: [T, H * D]."""
        starts = self.inputs.query_starts.tolist()
        contexts = self.inputs.context_lens.tolist()
        rows = enumerate(zip(starts, starts[1:], contexts, strict=False))
        return torch.cat([self._row(row, *span) for row, span in rows])

    def _row(self, row: int, begin: int, end: int, context: int) -> torch.Tensor:
        """Compute the tokens begin..end - 1, the last ones of a row's context."""
        q_heads, kv_heads, dim = self.heads
        keys, values = self._cached(row, context)  # [K, context, D]
        grouped = self.q[begin:end].float().view(-1, kv_heads, q_heads // kv_heads, dim)
        place = torch.arange(context, device=self.q.device)
        parts = []
        for first in range(0, end - begin, 256):  # limits the memory of the scores
            part = grouped[first : first + 256]
            own = (context - (end - begin) + first + torch.arange(len(part)))[:, None].to(place)
            scores = torch.einsum("tkgd,kcd->tkgc", part, keys) * dim**-0.5
            hidden = place > own
            if self.window:
                hidden |= place <= own - self.window
            scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
            if self.sinks is not None:
                sink = self.sinks.view(kv_heads, -1, 1).expand(*scores.shape[:-1], 1)
                scores = torch.cat((scores, sink), dim=-1)
            weights = scores.softmax(dim=-1)[..., :context]
            parts.append(torch.einsum("tkgc,kcd->tkgd", weights, values).flatten(1))
        return torch.cat(parts)

    def _cached(self, row: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a row's keys and values in float32: [K, context, D] each."""
        block_size = self.cache.values.shape[2]
        blocks = self.inputs.block_tables[row, : -(-context // block_size)].long()
        keys = self.cache.keys.transpose(2, 3)[blocks].float()  # [blocks, K, P, D]
        values = self.cache.values[blocks].float()
        found = []
        scales = (self.cache.key_scales, self.cache.value_scales)
        for part, scale in zip((keys, values), scales, strict=True):
            rows = part.transpose(0, 1).flatten(1, 2)[:, :context]
            found.append(rows if scale is None else rows * scale[:, None, None])
        return found[0], found[1]


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The chunks of a step and the heads of the model that computes it."""

    name: str
    heads: tuple[int, int, int]
    chunks: Chunks
    window: int = 0
    with_sinks: bool = False

    def cache_dtypes(self, bench: Bench) -> Sequence[torch.dtype]:
        """The served dtype, and 8-bit floats if the device supports them."""
        return (bench.dtype,) if bench.rehearsed else (bench.dtype, torch.float8_e4m3fn)

    def draw(self, bench: Bench, dtype: torch.dtype) -> RandomAttention:
        """Make random inputs with a cache of `dtype`."""
        q_heads, kv_heads, dim = self.heads
        shape = Shape(self.name, "", 0, q_heads, kv_heads, dim, 0, 1, 0, False, 1.0, False)
        step, cache = step_of(bench, shape, list(self.chunks))
        if dtype != bench.dtype:
            cache = _in_eight_bits(cache)
        tokens = sum(now for _, now in self.chunks)
        q = 2 * torch.randn(tokens, q_heads * dim, dtype=bench.dtype, device=bench.device)
        sinks = torch.linspace(-4, 8, q_heads, device=bench.device) if self.with_sinks else None
        return RandomAttention(q, step, cache, self.heads, self.window, sinks)


def _in_eight_bits(cache: LayerCache[torch.Tensor]) -> LayerCache[torch.Tensor]:
    """Round the cache to float8_e4m3fn with one scale per KV head, in the same layout."""
    kv_heads = cache.values.shape[1]
    scales = 2.0 ** -torch.arange(3, 3 + kv_heads, device=cache.keys.device).remainder(6).float()
    keys = (cache.keys.transpose(2, 3).float() / scales[:, None, None]).clamp(-_LARGEST, _LARGEST)
    values = (cache.values.float() / scales[:, None, None]).clamp(-_LARGEST, _LARGEST)
    held = [part.to(torch.float8_e4m3fn).contiguous() for part in (keys, values)]
    return LayerCache(held[0].transpose(2, 3), held[1], scales, scales.clone())


def attention_cases(rehearsed: bool) -> list[AttentionCase]:
    """Return the cases for a GPU, or a few small ones for a rehearsal on the CPU."""
    if rehearsed:
        small = (4, 2, 16)
        return [
            AttentionCase("decode", small, ((40, 1), (3, 1))),
            AttentionCase("prompt window sinks", small, ((0, 40), (5, 20)), 16, True),
        ]
    qwen_8b, qwen_06b, qwen_30b, oss = (32, 8, 128), (16, 8, 128), (32, 4, 128), (64, 8, 64)
    one_long = ((16383, 1), *((1023, 1),) * 31)
    mixed = tuple((1 + 37 * row % 2011, 1) for row in range(300))
    with_prompt = (*((700 + row, 1) for row in range(31)), (0, 2000))
    chunked = tuple((512 * row, 1024) for row in range(8))
    decode = ((1023, 1),)
    return [
        AttentionCase("decode 1x1k", qwen_8b, decode),
        AttentionCase("decode 32x1k", qwen_8b, decode * 32),
        AttentionCase("decode 256x1k", qwen_8b, decode * 256),
        AttentionCase("decode 1x16k+31x1k", qwen_8b, one_long),
        AttentionCase("decode 300 mixed", qwen_8b, mixed),
        AttentionCase("decode 300 mixed 0.6b", qwen_06b, mixed),
        AttentionCase("decode 300 mixed 30b", qwen_30b, mixed),
        AttentionCase("decode 300 mixed oss", oss, mixed, 128, True),
        AttentionCase("decode 1x16k+31x1k oss", oss, one_long, 0, True),
        AttentionCase("decode drafts 64x4", qwen_8b, tuple((50 + 17 * r, 4) for r in range(64))),
        AttentionCase("prompt 1x1k", qwen_8b, ((0, 1024),)),
        AttentionCase("prompt 1x8k", qwen_8b, ((0, 8192),)),
        AttentionCase("prompt 8x1k chunks", qwen_8b, chunked),
        AttentionCase("prompt chunk 1k after 15k", qwen_8b, ((15000, 1024),)),
        AttentionCase("prompt mixed with decode", qwen_8b, with_prompt),
        AttentionCase("prompt window 1k", qwen_8b, chunked, 1024),
        AttentionCase("prompt oss window sinks", oss, chunked, 128, True),
        AttentionCase("prompt oss sinks", oss, ((0, 3000), (100, 77)), 0, True),
        AttentionCase("prompt 30b", qwen_30b, ((0, 3000), (9, 300), (0, 33))),
    ]
