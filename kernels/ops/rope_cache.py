"""The op `rope_cache`: normalises the heads of queries and keys, applies rotary embedding (arXiv
2104.09864, pairs of half-dimensions), and writes keys and values to the paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.kernels.cache_slots import write_slots
from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.norm import rms_norm
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.step_inputs import HeadNorm, LayerCache, StepInputs


def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Return x [T, heads, D] rotated by `rope: [T, rotated]`, which contains rotated / 2 cosines,
    then as many sines."""
    rotated = rope.shape[-1]
    cosine, sine = rope[:, None].chunk(2, dim=-1)
    first, second = x[..., :rotated].chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat((*turned, x[..., rotated:]), dim=-1)


def rope_cache(
    qkv: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    head_norm: HeadNorm | None,
) -> torch.Tensor:
    """Normalise (unless `head_norm` is None) and rotate q and k, store k and v in the cache at
    `inputs.slots`, and return q: [T, H * D]."""
    q_heads, kv_heads, dim = heads
    q, k, v = qkv.unflatten(-1, (-1, dim)).split((q_heads, kv_heads, kv_heads), dim=1)
    if head_norm is not None:
        q = rms_norm(q, head_norm.q_weight, head_norm.eps)
        k = rms_norm(k, head_norm.k_weight, head_norm.eps)
    angles = rope[inputs.positions.long()]
    block_size = cache.keys.shape[-1]
    block, offset = inputs.slots.long() // block_size, inputs.slots.long() % block_size
    write_slots(cache, block, offset, rotate(k, angles), v)
    return rotate(q, angles).flatten(1)


def rope_table(positions: int, rotated: int) -> torch.Tensor:
    """Return the rope table [positions, rotated] for base 10000: cosines, then sines."""
    frequency = 10000.0 ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequency)
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def rope_inputs(
    chunks: Sequence[tuple[int, int]],
    heads: tuple[int, int, int],
    block_size: int,
    dtype: torch.dtype,
    rotated: int,
    norm: str = "",
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        q_heads, kv_heads, dim = heads
        step = source.step(chunks, block_size)
        tokens = len(step.tokens)
        head_norm = HeadNorm(source.normal(dim), source.normal(dim), 1e-6) if norm else None
        return {
            "qkv": source.normal(tokens, (q_heads + 2 * kv_heads) * dim),
            "rope": rope_table(int(step.context_lens.max()) + 1, rotated),
            "inputs": step,
            "cache": source.cache(step, block_size, (kv_heads, dim), dtype),
            "heads": heads,
            "head_norm": head_norm,
        }

    return make_inputs


def _invoke(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    names = ("qkv", "rope", "inputs", "cache", "heads", "head_norm")
    q = ops.rope_cache(*(inputs[name] for name in names))
    return q, inputs["cache"].keys, inputs["cache"].values


def single_token(step: StepInputs[torch.Tensor], index: int) -> StepInputs[torch.Tensor]:
    """Return the inputs of a step that decodes token `index` of `step` alone."""
    row = int((step.query_starts[1:] <= index).sum())
    token = slice(index, index + 1)
    return StepInputs(
        tokens=step.tokens[token],
        positions=step.positions[token],
        slots=step.slots[token],
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=step.positions[token] + 1,
        block_tables=step.block_tables[row : row + 1],
        sample_rows=torch.zeros(1, dtype=torch.int32),
    )


def rope_alone(inputs: Inputs, index: int) -> dict[str, Any]:
    row = inputs["qkv"][index : index + 1]
    return {**inputs, "qkv": row, "inputs": single_token(inputs["inputs"], index)}


def rope_cost(inputs: Inputs) -> Cost:
    q_heads, kv_heads, dim = inputs["heads"]
    tokens = len(inputs["qkv"])
    cached = 2 * kv_heads * dim * inputs["cache"].keys.element_size()
    moved = tokens * (4 * (2 * q_heads + 2 * kv_heads) * dim + cached + 4 * dim)
    return Cost(moved, tokens * (q_heads + kv_heads) * dim * 3)


_MIXED = ((0, 5), (30, 1), (15, 3), (16, 1))
_F16, _F32 = torch.float16, torch.float32

ROPE_CACHE = Op(
    name="rope_cache",
    signature=(
        "qkv float [T, H*D+2*K*D]; rope float32 [positions, rotated]; inputs StepInputs; "
        "update cache LayerCache; heads Heads; optional head_norm HeadNorm; "
        "write out float [T, H*D]"
    ),
    reference=rope_cache,
    custom_invoke=_invoke,
    cases=(
        Case("decode-9x3x64", "float", rope_inputs(((40, 1),), (9, 3, 64), 16, _F16, 64)),
        Case("mixed-9x3x64", "float", rope_inputs(_MIXED, (9, 3, 64), 16, _F16, 64)),
        Case("mixed-f32", "float", rope_inputs(_MIXED, (4, 2, 32), 16, _F32, 32)),
        Case("head-norm", "float", rope_inputs(_MIXED, (4, 2, 128), 16, _F16, 128, "norm")),
        Case("partial", "float", rope_inputs(_MIXED, (2, 2, 96), 16, _F32, 48)),
        Case("partial-head-norm", "float", rope_inputs(_MIXED, (2, 1, 64), 32, _F32, 32, "norm")),
        Case("wide-256", "float", rope_inputs(((3, 4), (0, 1)), (4, 1, 256), 16, _F16, 256)),
    ),
    benchmarks=(
        Case("smollm2-T1", "float", rope_inputs(((511, 1),), (9, 3, 64), 16, _F16, 64)),
        Case("smollm2-T512", "float", rope_inputs(((0, 512),), (9, 3, 64), 16, _F16, 64)),
        Case("qwen1.5b-T512", "float", rope_inputs(((0, 512),), (12, 2, 128), 16, _F16, 128)),
    ),
    # "f16" is the tolerance of float16 results: the contents of the cache.
    tolerance={"float": Tolerance(1e-5, 1e-5), "f16": Tolerance(1e-4, 1e-3)},
    cost=rope_cost,
    order=("cuda", "triton", "native", "reference"),
    native_kernels=("rope_cache", "norm_rope_cache"),
    alone=rope_alone,
)
