"""The section `check`: compare every kernel at served shapes with float32, before anything is
timed.

A wrong kernel can be fast and finite. The registry's cases are small: they give a persistent kernel
fewer tiles than a GPU has multiprocessors. The cases here give it many, with mixed lengths, random
block tables, windows, sinks and an 8-bit cache. A case fails if the relative error of the whole
result or of its worst row exceeds the bound of the result's dtype. Then a model of Qwen3-0.6B's
shape runs through the serving path (packaged kernels, captured graphs) and transformers checks each
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from bench.device import transformers_check as oracle
from bench.device.attention_cases import AttentionCase, attention_cases
from bench.device.linear_kernels import float8_product, own_calls, product
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES, Shape, float8_tiles
from bench.device.ops import (
    layer_sizes,
    pack_dense,
    pack_float8,
    random_weight,
    sampling_rows,
    step_of,
)
from bench.device.recurrent import recurrent_calls
from bench.device.result_log import Record
from penstock.kernels.ops.norm import add_rms_norm, rms_norm
from penstock.kernels.ops.rope_cache import rope_cache
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import HeadNorm, LayerCache
from penstock.kernels.triton.matmul.linear import rounded_to_float8
from penstock.kernels.triton.matmul.packed_weights import PackedFloat8

WHOLE, WORST = 1e-2, 4e-2
"""Bounds of ||out - ref|| / ||ref|| in bfloat16: for the whole result, and for its worst row."""

FLOAT8_WHOLE, FLOAT8_WORST = 6e-2, 1.5e-1
"""The same bounds if activations are rounded to 8-bit floats, with an error of 2^-4 each at
most."""

STREAMED = (1, 2, 7, 8, 9, 16, 17, 24, 33, 48, 64)
"""Rows that the CUDA library's streaming kernel accepts."""

STAGED = (65, 100, 128)
"""Row counts that only its staged kernel accepts."""

FLOAT8_ROWS = (1, 2, 7, 8, 9, 16, 17, 33, 64, 100, 128, 1000)
"""Row counts of products with float8 weights."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: `call` computes results on the device, `truth` the expected ones in float32.

    `whole` and `worst` are the bounds of the relative errors (see `WHOLE`).
    """

    name: str
    call: Callable[[], torch.Tensor]
    truth: Callable[[], torch.Tensor]
    whole: float = WHOLE
    worst: float = WORST


def measure(bench: Bench, record: Record) -> None:
    """Run the section. Raises AssertionError after the last check if any failed."""
    record.title("kernels at served shapes against float32")
    failed = [
        check.name for check in checks(bench) if not _passes(bench, record, check)
    ] + oracle.measure(bench, record)
    record.line("check", wrong=len(failed), names=", ".join(failed) or None)
    assert not failed, f"wrong results: {', '.join(failed)}"


def checks(bench: Bench) -> Iterator[Check]:
    """Yield every comparison of kernels, in the order of a decoder's step."""
    shape = SHAPES["qwen3-8b"].small() if bench.rehearsed else SHAPES["qwen3-8b"]
    counts = (1, 3) if bench.rehearsed else (1, 32, 256, 1000)
    for tokens in counts:
        yield from _norms(bench, shape, tokens)
        yield from _rope(bench, shape, tokens)
    for case in attention_cases(bench.rehearsed):
        yield from _attention(bench, case)
    yield from _products(bench, shape, counts)
    for call in recurrent_calls(bench):
        yield Check(call.name, call.checked, call.truth)
    for rows in (1, 3) if bench.rehearsed else (1, 32, 150):
        yield from _sampling(bench, shape, rows)


def _passes(bench: Bench, record: Record, check: Check) -> bool:
    """Return whether one check passes; record a line if it does not."""
    try:
        poison(bench)
        whole, worst = errors(check.call(), check.truth())
        bench.sync()
    except Exception as error:  # a broken kernel must not hide the other results
        record.line(check.name, failed=f"{type(error).__name__}: {str(error)[:300]}")
        bench.sync()  # raises if the device is lost, since nothing could run after that
        return False
    passed = whole <= check.whole and worst <= check.worst  # False for NaN
    record.line(check.name, error=whole, worst=worst, passed=str(passed))
    return passed


def poison(bench: Bench) -> None:
    """Fill the allocator's free memory with NaN, so that elements a kernel does not write show
    up."""
    if bench.device != "cpu":
        for size_bytes in (1 << 20, 64 << 20, 512 << 20):
            torch.full((size_bytes // 4,), float("nan"), device=bench.device)


def errors(out: torch.Tensor, truth: torch.Tensor) -> tuple[float, float]:
    """Return the relative error of a result [N, ...] as a whole, and that of the worst of its N
    rows."""
    assert out.shape == truth.shape, f"shape {tuple(out.shape)}, expected {tuple(truth.shape)}"
    difference = (out.float() - truth.float()).flatten(1).norm(dim=1)
    size = truth.float().flatten(1).norm(dim=1)
    worst = (difference / size.clamp_min(1e-20)).max()
    return float(difference.norm() / size.norm()), float(worst)


def _norms(bench: Bench, shape: Shape, tokens: int) -> Iterator[Check]:
    x, residual = (_random(bench, tokens, shape.width) for _ in range(2))
    weight = torch.rand(shape.width, device=bench.device) + 0.5
    yield Check(
        f"rms_norm {tokens}x{shape.width}",
        lambda: bench.ops.rms_norm(x, weight, 1e-6),
        lambda: rms_norm(x.float(), weight, 1e-6),
    )
    yield Check(
        f"add_rms_norm {tokens}x{shape.width}",
        lambda: torch.cat(bench.ops.add_rms_norm(x, residual, weight, 1e-6)),
        lambda: torch.cat(add_rms_norm(x.float(), residual.float(), weight, 1e-6)),
    )
    wide = _random(bench, tokens, 2 * shape.ff)
    yield Check(
        f"silu_mul {tokens}x{shape.ff}",
        lambda: bench.ops.silu_mul(wide),
        lambda: ReferenceOps(device=bench.device).silu_mul(wide.float()),
    )


def _rope(bench: Bench, shape: Shape, tokens: int) -> Iterator[Check]:
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    step, cache = step_of(bench, shape, [(37 * row % 900, 1) for row in range(tokens)])
    qkv = _random(bench, tokens, (heads[0] + 2 * heads[1]) * heads[2])
    half = torch.arange(0, shape.head_dim, 2, device=bench.device) / shape.head_dim
    angles = torch.outer(torch.arange(1000, device=bench.device), shape.theta**-half)
    rope = torch.cat((angles.cos(), angles.sin()), dim=1).float()
    weights = [torch.rand(shape.head_dim, device=bench.device) + 0.5 for _ in range(2)]
    norm = HeadNorm(weights[0], weights[1], 1e-6)
    wide = LayerCache(cache.keys.float(), cache.values.float())

    def together(q: torch.Tensor, written: LayerCache[torch.Tensor]) -> torch.Tensor:
        """Concatenate q and the keys and values written for each token: [T, (H + 2 K) D]."""
        block, offset = step.slots.long() // 16, step.slots.long() % 16
        keys = written.keys[block, :, :, offset].flatten(1)
        values = written.values[block, :, offset].flatten(1)
        return torch.cat((q.float(), keys.float(), values.float()), dim=1)

    yield Check(
        f"rope_cache {tokens} tokens",
        lambda: together(bench.ops.rope_cache(qkv, rope, step, cache, heads, norm), cache),
        lambda: together(rope_cache(qkv.float(), rope, step, wide, heads, norm), wide),
    )


def _attention(bench: Bench, case: AttentionCase) -> Iterator[Check]:
    """Yield the case with a cache of the served dtype and, on a GPU, with an 8-bit one."""
    for dtype in case.cache_dtypes(bench):
        inputs = case.draw(bench, dtype)
        call = partial(bench.ops.attention, *inputs.arguments())
        heads = inputs.heads[0]

        def by_head(result: torch.Tensor, heads: int = heads) -> torch.Tensor:
            return result.view(-1, result.shape[1] // heads)

        yield Check(
            f"attention {case.name}" + ("" if dtype == bench.dtype else " fp8 cache"),
            lambda call=call, shown=by_head: shown(call()),  # type: ignore[misc]
            lambda inputs=inputs, shown=by_head: shown(inputs.truth()),  # type: ignore[misc]
        )


def _products(bench: Bench, shape: Shape, counts: tuple[int, ...]) -> Iterator[Check]:
    wanted = sorted({*counts, *(() if bench.rehearsed else (*STREAMED, *STAGED))})
    for rows, width in [*layer_sizes(shape), (shape.vocab, shape.width)]:
        weight = random_weight(bench, rows, width)
        packed = pack_dense(bench, weight, head=rows == shape.vocab)
        for tokens in wanted:
            x = _random(bench, tokens, width)
            truth = partial(product, x, weight)
            name = f"{rows}x{width} {tokens}"
            yield Check(f"linear {name}", partial(bench.ops.linear, x, packed), truth)
            for kernel, call in own_calls(bench, x, packed).items():
                yield Check(f"linear by {kernel} {name}", call, truth)
    for rows, width in () if bench.rehearsed else layer_sizes(shape):
        weight = random_weight(bench, rows, width)
        tiled = pack_float8(bench, *float8_tiles(weight))
        by_row = rounded_to_float8(pack_dense(bench, weight))
        for tokens in FLOAT8_ROWS:
            x = _random(bench, tokens, width)
            name = f"{rows}x{width} {tokens}"
            yield Check(
                f"linear fp8 {name}",
                partial(bench.ops.linear, x, tiled),
                partial(float8_product, x, tiled.parts[0]),
                FLOAT8_WHOLE,
                FLOAT8_WORST,
            )
            for form, packed in (("", tiled), (" row scales", by_row)):
                part = packed.parts[0]
                assert isinstance(part, PackedFloat8)
                for kernel, call in own_calls(bench, x, packed).items():
                    truth = partial(float8_product, x, part)
                    yield Check(f"linear fp8{form} by {kernel} {name}", call, truth)


def _sampling(bench: Bench, shape: Shape, rows: int) -> Iterator[Check]:
    """Compare sampled tokens with the reference's: 1 for each row that agrees. Greedy rows must all
    agree; a random choice may differ at the edge of a rounding, in one row of a hundred at most."""
    logits = 3 * torch.randn(rows, shape.vocab, device=bench.device)
    settings = {"greedy": (0.0, 0, 1.0), "tempered": (1.0, 0, 1.0), "narrow": (0.8, 40, 0.9)}
    for name, asked in settings.items():

        def agreement(asked: tuple[float, int, float] = asked) -> torch.Tensor:
            there = sampling_rows(bench, rows, *asked)
            sampled: torch.Tensor = bench.ops.sample(logits.clone(), there).cpu()
            here = sampling_rows(replace(bench, device="cpu"), rows, *asked)
            expected: torch.Tensor = ReferenceOps().sample(logits.cpu(), here)
            return (sampled == expected)[:, None].float()

        most = 0.0 if name == "greedy" else 0.1
        yield Check(
            f"sample {name} {rows}", agreement, lambda: torch.ones(rows, 1), most, float("inf")
        )


def _random(bench: Bench, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=bench.dtype, device=bench.device)
