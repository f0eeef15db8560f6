"""The ops `rope_cache` and `attention` over an int8 KV cache, which only CPUs have: the same
references, with cases and native kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.kernels.cache_slots import read_slots, write_slots
from penstock.kernels.ops.attention import (
    LONG,
    MANY,
    MIXED,
    attention,
    attention_alone,
    attention_cost,
    attention_inputs,
)
from penstock.kernels.ops.rope_cache import rope_alone, rope_cache, rope_cost, rope_inputs
from penstock.kernels.registry import Case, Inputs, Op, Tolerance
from penstock.kernels.step_inputs import LayerCache

_INT8 = torch.int8


def _write(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Return q, the numbers that the written slots of the cache represent, as float16, and the
    bytes of all other slots."""
    names = ("qkv", "rope", "inputs", "cache", "heads", "head_norm")
    q = ops.rope_cache(*(inputs[name] for name in names))
    slots = torch.as_tensor(inputs["inputs"].slots).long()
    cache = inputs["cache"]
    held = LayerCache(torch.as_tensor(cache.keys), torch.as_tensor(cache.values))
    size = held.keys.shape[-1]
    block, offset = slots // size, slots % size
    keys, values = read_slots(held, block, offset, torch.float32)
    zeros = torch.zeros_like(keys)
    write_slots(held, block, offset, zeros, zeros)
    return q, keys.half(), values.half(), held.keys, held.values


def _attend(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    names = ("q", "inputs", "cache", "heads", "scale", "window", "sinks", "softcap")
    return (ops.attention(*(inputs[name] for name in names)),)


def _case(
    name: str, chunks: Sequence[tuple[int, int]], heads: tuple[int, int, int], **options: Any
) -> Case:
    return Case(name, "int8", attention_inputs(chunks, heads, 16, _INT8, **options))


_CACHED = ((0, 5), (30, 1), (15, 3), (16, 1))

INT8_ROPE_CACHE = Op(
    name="int8_rope_cache",
    signature=(
        "qkv float [T, H*D+2*K*D]; rope float32 [positions, rotated]; inputs StepInputs; "
        "update cache Int8Cache; heads Heads; optional head_norm HeadNorm; "
        "write out float [T, H*D]"
    ),
    reference=rope_cache,
    custom_invoke=_write,
    cases=(
        Case("decode-9x3x64", "int8", rope_inputs(((40, 1),), (9, 3, 64), 16, _INT8, 64)),
        Case("mixed-9x3x64", "int8", rope_inputs(_CACHED, (9, 3, 64), 16, _INT8, 64)),
        Case("head-norm", "int8", rope_inputs(_CACHED, (4, 2, 128), 32, _INT8, 128, "norm")),
        Case("partial", "int8", rope_inputs(_CACHED, (2, 2, 40), 16, _INT8, 20)),
        Case("wide-256", "int8", rope_inputs(((3, 4), (0, 1)), (4, 1, 256), 16, _INT8, 256)),
    ),
    benchmarks=(
        Case("smollm2-T1", "int8", rope_inputs(((511, 1),), (9, 3, 64), 16, _INT8, 64)),
        Case("smollm2-T512", "int8", rope_inputs(((0, 512),), (9, 3, 64), 16, _INT8, 64)),
    ),
    # "f16" is the tolerance of the contents of the cache: a number close to a tie may be rounded to
    # either side. tests/native/test_int8_cache.py compares with the numbers before rounding.
    tolerance={"int8": Tolerance(1e-5, 1e-5), "f16": Tolerance(5e-2, 1e-3)},
    cost=rope_cost,
    order=("native", "reference"),
    native_kernels=("int8_rope_cache", "int8_norm_rope_cache"),
    alone=rope_alone,
)
INT8_ATTENTION = Op(
    name="int8_attention",
    signature=(
        "q float [T, H*D]; inputs StepInputs; cache Int8Cache; heads Heads; real scale; "
        "integer window; optional sinks float32 [H]; real softcap; write out float [T, H*D]"
    ),
    reference=attention,
    custom_invoke=_attend,
    cases=(
        _case("first-token", ((0, 1),), (4, 2, 32)),
        _case("decode", ((99, 1), (15, 1), (0, 1)), (9, 3, 64)),
        _case("mixed", MIXED, (9, 3, 64)),
        _case("own-heads", MIXED, (4, 4, 64)),
        _case("prompt", ((0, 150),), (4, 2, 64)),
        _case("window", ((200, 1), (60, 40)), (4, 4, 64), window=64),
        _case("prompt-window", ((137, 190), (0, 40)), (6, 2, 128), window=150),
        _case("odd-window", MIXED, (4, 1, 32), window=9),
        _case("multi-query-128", MIXED, (12, 2, 128)),
        _case("half-vectors-40", MIXED, (4, 2, 40)),
        _case("half-vectors-window", ((137, 190), (70, 1)), (6, 2, 72), window=37),
        _case("wide-256", ((20, 3), (33, 1)), (4, 1, 256)),
        Case("block-32", "int8", attention_inputs(MIXED, (4, 2, 64), 32, _INT8)),
        Case("block-128", "int8", attention_inputs(LONG, (4, 2, 64), 128, _INT8)),
        _case("decode-long", LONG, (4, 2, 32)),
        _case("decode-many", MANY, (4, 2, 64)),
        _case("decode-long-window", LONG, (8, 2, 64), window=300),
        _case("mixed-long", (*LONG, (290, 70)), (4, 1, 64)),
        _case("chunks", ((60, 150), (128, 1)), (4, 2, 64), window=-64),
        _case("sinks-mixed", MIXED, (9, 3, 64), with_sinks=True),
        _case("sinks-decode-long", LONG, (16, 2, 64), with_sinks=True),
        _case("visible", ((60, 150), (70, 2)), (4, 2, 64), window=130, blocks=((0, 10, 100),)),
        _case("softcap", (*LONG, (290, 70)), (8, 2, 64), softcap=2.5),
    ),
    benchmarks=tuple(
        _case(f"{model}-{name}", chunks, heads)
        for model, heads in (("smollm2", (9, 3, 64)), ("qwen1.5b", (12, 2, 128)))
        for name, chunks in (
            ("decode-1x512", ((511, 1),)),
            ("decode-1x8192", ((8191, 1),)),
            ("decode-1x32768", ((32767, 1),)),
            ("decode-16x512", ((511, 1),) * 16),
            ("prompt-512", ((0, 512),)),
        )
    ),
    # Rounding a query of size 6 to 15 bits changes a score of size 6 by about 1e-4, and so the
    # weights. Rounding a weight changes it by 2^-16 of the largest weight of its tile.
    tolerance={"int8": Tolerance(1e-3, 1e-3)},
    cost=attention_cost,
    order=("native", "reference"),
    native_kernels=("int8_paged_attention", "int8_sink_attention", "int8_visible_attention"),
    alone=attention_alone,
)
