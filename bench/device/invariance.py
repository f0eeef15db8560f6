"""Checks that an answer does not depend on the requests batched with it, and measures the cost of
that guarantee."""

from __future__ import annotations

import statistics
from dataclasses import replace

import torch

from bench.device.engine import (
    FULL,
    GREEDY,
    SMALL,
    Sizes,
    decode_steps_s,
    engine_settings,
    open_runtime,
    start_decoding,
)
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES, Shape
from bench.device.ops import step_of
from bench.device.result_log import Record
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.runtime.gpu.runtime import GpuRuntime

ANSWER = 24


def measure(bench: Bench, record: Record, name: str) -> None:
    """Run the section `invariance`: without deterministic mode, then with it."""
    shape, sizes = SHAPES[name], FULL
    if bench.rehearsed:
        shape, sizes = shape.small(), SMALL
    record.title(f"{name}, attention of a prompt in two chunks")
    _cut(bench, record, shape)
    for mode in (False, True):
        record.title(f"{name}, deterministic {mode}")
        with open_runtime(bench, record, shape, sizes, deterministic=mode) as runtime:
            _same(record, runtime, sizes)
            for width in (sizes.widths[0], sizes.widths[-1]):
                runtime.warm(width)
                core, prompts_s = start_decoding(runtime, sizes, width, sizes.new)
                step_s = statistics.median(decode_steps_s(core, width))
                prompts = width * sizes.prompt / prompts_s
                record.line(f"decode {width}", ms=step_s * 1e3, prompt_tok_s=prompts)


def _cut(bench: Bench, record: Record, shape: Shape) -> None:
    """Record how many rows of a prompt keep their bits if it is split inside a tile."""
    tokens, first = (48, 19) if bench.rehearsed else (1500, 611)
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    step, cache = step_of(bench, shape, [(0, tokens)])
    q = torch.randn(tokens, heads[0] * heads[2], dtype=bench.dtype, device=bench.device)
    results = []
    for begin, end in ((0, tokens), (0, first), (first, tokens)):
        part = replace(
            step,
            query_starts=torch.tensor([0, end - begin]).to(step.query_starts),
            context_lens=torch.tensor([end]).to(step.context_lens),
            positions=step.positions[begin:end],
        )
        of_part = q[begin:end].contiguous()
        results.append(bench.ops.attention(of_part, part, cache, heads, heads[2] ** -0.5, 0))
    whole, *parts = results
    equal = int((whole == torch.cat(parts)).all(dim=1).sum())
    record.line(bench.ops.registry["attention"].name, rows=tokens, equal_rows=equal)


def _same(record: Record, runtime: GpuRuntime, sizes: Sizes) -> None:
    """Compare the log probabilities of one answer alone and in a batch, bit by bit."""
    alone = _logprobs(runtime, sizes, 1)
    for width in sizes.widths[1:]:
        among = _logprobs(runtime, sizes, width)
        pairs = list(zip(alone, among, strict=True))
        agreed = next((i for i, (one, other) in enumerate(pairs) if one[0] != other[0]), ANSWER)
        apart = max(abs(one[1] - other[1]) for one, other in pairs[: agreed or 1])
        equal = sum(one == other for one, other in pairs)
        record.line(f"alone and among {width}", equal_bits=equal, same_tokens=agreed, apart=apart)


def _logprobs(runtime: GpuRuntime, sizes: Sizes, width: int) -> list[tuple[int, float]]:
    core = EngineCore.for_runtime(runtime, engine_settings(sizes))
    vocab = runtime.info.vocab_size - 10
    for index in range(width):
        length = sizes.prompt - (index % 7)
        core.submit(
            TokenRequest(
                id=str(index),
                token_ids=tuple((7919 * index + 31 * place) % vocab for place in range(length)),
                sampling=GREEDY,
                seed=0,
                max_tokens=ANSWER if not index else sizes.new,
                top_logprobs=0 if not index else None,
            )
        )
    found: list[tuple[int, float]] = []
    while core.has_work:
        for chunk in core.step():
            if chunk.id == "0":
                found += [(t.token_id, t.logprob or 0.0) for t in chunk.tokens]
    return found
