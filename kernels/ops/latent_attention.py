"""The ops `latent_attention`, `latent_cache` and `latent_query`: attention of many heads over one
cache of latents (MLA)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.latent_ops import LatentSizes
from penstock.kernels.ops.head_linear import HeadMatrices, head_linear, random_heads
from penstock.kernels.ops.norm import rms_norm
from penstock.kernels.ops.rope_cache import rope_table, rotate, single_token
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.weights import FloatName


def latent_attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    sizes: LatentSizes,
    scale: float,
) -> torch.Tensor:
    """Compute causal attention of each token over its own sequence, whose keys and values all heads
    share: [T, heads * (latent + rotated)] -> [T, heads * latent]."""
    block_size = cache.keys.shape[-1]
    out = q.new_empty(len(q), sizes.heads, sizes.latent)
    rows = itertools.pairwise(inputs.query_starts.tolist())
    for row, (begin, end) in enumerate(rows):
        place = torch.arange(int(inputs.context_lens[row]), device=q.device)
        block = inputs.block_tables[row, place // block_size].long()
        keys = cache.keys[block, 0, :, place % block_size].to(
            q.dtype
        )  # [context, latent + rotated]
        values = cache.values[block, 0, place % block_size].to(q.dtype)
        scores = q[begin:end].unflatten(-1, (sizes.heads, -1)) @ keys.T * scale
        after = place > place[len(place) - (end - begin) :, None, None]
        out[begin:end] = scores.masked_fill(after, float("-inf")).softmax(dim=-1) @ values
    return out.flatten(1)


def latent_cache(
    kv: torch.Tensor,
    norm_weight: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    eps: float,
) -> None:
    """Normalise the latents of `kv` [T, latent + rotated], rotate the rest, and store both in the
    cache at `inputs.slots`."""
    latent, rest = kv.split((len(norm_weight), rope.shape[1]), dim=-1)
    latent = rms_norm(latent, norm_weight, eps)
    turned = rotate(rest[:, None], rope[inputs.positions.long()])[:, 0]
    block_size = cache.keys.shape[-1]
    block, offset = inputs.slots.long() // block_size, inputs.slots.long() % block_size
    cache.keys[block, 0, :, offset] = torch.cat((latent, turned), dim=-1).to(cache.keys.dtype)
    cache.values[block, 0, offset] = latent.to(cache.values.dtype)


def latent_query(
    q: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    weight: HeadMatrices,
    sizes: LatentSizes,
) -> torch.Tensor:
    """Return for each head the product of its plain elements with its matrix, then its rotated
    elements: [T, heads * (C + rotated)] -> [T, heads * (latent + rotated)]."""
    by_head = q.unflatten(-1, (sizes.heads, -1))
    plain, rest = by_head[..., : -sizes.rotated], by_head[..., -sizes.rotated :]
    absorbed = head_linear(plain.flatten(1), weight).unflatten(-1, (sizes.heads, -1))
    turned = rotate(rest, rope[inputs.positions.long()])
    return torch.cat((absorbed, turned), dim=-1).flatten(1)


def _cache(
    source: RandomInputs,
    step: StepInputs[Any],
    sizes: LatentSizes,
    block_size: int,
    dtype: torch.dtype,
) -> LayerCache[Any]:
    """Return a cache with random latents and rotated parts for the contexts of `step`, and NaN
    everywhere else."""
    dim = sizes.latent + sizes.rotated
    keys = source.cache(step, block_size, (1, dim), dtype).keys
    return LayerCache(keys, keys[:, :, : sizes.latent].transpose(2, 3).contiguous())


def _attention_inputs(
    chunks: Sequence[tuple[int, int]], sizes: LatentSizes, block_size: int, dtype: torch.dtype
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        step = source.step(chunks, block_size)
        dim = sizes.latent + sizes.rotated
        return {
            "q": 2 * source.normal(len(step.tokens), sizes.heads * dim),
            "inputs": step,
            "cache": _cache(source, step, sizes, block_size, dtype),
            "sizes": sizes,
            "scale": dim**-0.5,
        }

    return make_inputs


def _attention_cost(inputs: Inputs) -> Cost:
    sizes, step, cache = inputs["sizes"], inputs["inputs"], inputs["cache"]
    width = 2 * sizes.latent + sizes.rotated
    cached = width * cache.keys.element_size() * int(step.context_lens.long().sum())
    moved = 4 * len(inputs["q"]) * sizes.heads * width
    seen = int((step.positions.long() + 1).sum())
    return Cost(cached + moved, 2 * sizes.heads * width * seen)


def _attention_alone(inputs: Inputs, index: int) -> dict[str, Any]:
    row = inputs["q"][index : index + 1]
    return {**inputs, "q": row, "inputs": single_token(inputs["inputs"], index)}


def _cache_inputs(
    chunks: Sequence[tuple[int, int]],
    latent: int,
    rotated: int,
    block_size: int,
    dtype: torch.dtype,
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source, sizes = RandomInputs(seed), LatentSizes(1, latent, rotated)
        step = source.step(chunks, block_size)
        return {
            "kv": 3 * source.normal(len(step.tokens), latent + rotated),
            "norm_weight": source.normal(latent),
            "rope": rope_table(int(step.context_lens.max()) + 1, rotated),
            "inputs": step,
            "cache": _cache(source, step, sizes, block_size, dtype),
            "eps": 1e-6,
        }

    return make_inputs


def _invoke_cache(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    names = ("kv", "norm_weight", "rope", "inputs", "cache", "eps")
    ops.latent_cache(*(inputs[name] for name in names))
    return inputs["cache"].keys, inputs["cache"].values


def _cache_cost(inputs: Inputs) -> Cost:
    tokens, width = inputs["kv"].shape
    cached = (width + len(inputs["norm_weight"])) * inputs["cache"].keys.element_size()
    return Cost(tokens * (4 * width + cached), 4 * tokens * width)


def _query_inputs(
    like: FloatName, chunks: Sequence[tuple[int, int]], sizes: LatentSizes, plain: int
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        step = source.step(chunks, 16)
        return {
            "q": source.normal(len(step.tokens), sizes.heads * (plain + sizes.rotated)),
            "rope": rope_table(int(step.context_lens.max()) + 1, sizes.rotated),
            "inputs": step,
            "weight": random_heads(source, sizes.heads, sizes.latent, plain, like),
            "sizes": sizes,
        }

    return make_inputs


def _invoke_query(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    weight = ops.pack_head_linear(inputs["weight"])
    names = ("q", "rope", "inputs")
    return (ops.latent_query(*(inputs[name] for name in names), weight, inputs["sizes"]),)


def _query_cost(inputs: Inputs) -> Cost:
    tokens, columns = inputs["q"].shape
    rows, width = inputs["weight"].shape
    weights = sum(part.data.nbytes for part in inputs["weight"].parts)
    rotated = inputs["sizes"].heads * inputs["sizes"].rotated
    return Cost(weights + 4 * tokens * (columns + rows + rotated), 2 * tokens * rows * width)


_MIXED = ((0, 5), (30, 1), (15, 3), (16, 1), (0, 1), (70, 20))
_LONG = ((599, 1), (255, 1), (1, 1), (256, 1))
_F16, _F32 = torch.float16, torch.float32
_SMALL, _UNEVEN = LatentSizes(4, 64, 16), LatentSizes(5, 40, 24)
_LITE, _V3 = LatentSizes(16, 512, 64), LatentSizes(128, 512, 64)  # DeepSeek V2 Lite, V3

LATENT_ATTENTION = Op(
    name="latent_attention",
    signature=(
        "q float [T, heads*latent+heads*rotated]; inputs StepInputs; cache LatentCache; "
        "sizes LatentSizes; real scale; write out float [T, heads*latent]"
    ),
    reference=latent_attention,
    cases=(
        Case("first-token", "f32", _attention_inputs(((0, 1),), _SMALL, 16, _F32)),
        Case("mixed-f32", "f32", _attention_inputs(_MIXED, _UNEVEN, 16, _F32)),
        Case("mixed-f16", "f16", _attention_inputs(_MIXED, _SMALL, 32, _F16)),
        Case("one-head", "f16", _attention_inputs(_MIXED, LatentSizes(1, 64, 8), 16, _F16)),
        Case("decode-long", "f32", _attention_inputs(_LONG, _SMALL, 16, _F32)),
        Case(
            "decode-long-f16", "f16", _attention_inputs(_LONG, LatentSizes(48, 128, 32), 16, _F16)
        ),
        Case("prompt", "f16", _attention_inputs(((0, 300), (137, 90)), _SMALL, 16, _F16)),
        Case("lite", "f16", _attention_inputs(((290, 1), (20, 6)), _LITE, 16, _F16)),
        Case("many-heads", "f16", _attention_inputs(((70, 3),), _V3, 64, _F16)),
    ),
    benchmarks=tuple(
        Case(f"{model}-{name}", "f16", _attention_inputs(chunks, sizes, 16, _F16))
        for model, sizes in (("v2-lite", _LITE), ("v3", _V3))
        for name, chunks in (
            ("decode-1x512", ((511, 1),)),
            ("decode-1x8192", ((8191, 1),)),
            ("decode-16x512", ((511, 1),) * 16),
            ("prompt-512", ((0, 512),)),
        )
    ),
    tolerance={
        "f32": Tolerance(2e-5, 2e-5),
        "f16": Tolerance(3e-3, 3e-3),
        "f16-in-bf16": Tolerance(3e-2, 2**-7),  # as in `attention`
        "f16-by-tiles": Tolerance(3e-2, 2**-7),
    },
    cost=_attention_cost,
    order=("triton", "native", "reference"),
    alone=_attention_alone,
)
LATENT_CACHE = Op(
    name="latent_cache",
    signature=(
        "kv float [T, latent+rotated]; norm_weight float32 [latent]; "
        "rope float32 [positions, rotated]; inputs StepInputs; update cache LatentCache; real eps"
    ),
    reference=latent_cache,
    custom_invoke=_invoke_cache,
    cases=(
        Case("decode", "float", _cache_inputs(((40, 1),), 64, 16, 16, _F16)),
        Case("mixed-f32", "float", _cache_inputs(_MIXED, 40, 24, 16, _F32)),
        Case("mixed-f16", "float", _cache_inputs(_MIXED, 512, 64, 32, _F16)),
    ),
    benchmarks=(
        Case("v3-T1", "float", _cache_inputs(((511, 1),), 512, 64, 16, _F16)),
        Case("v3-T512", "float", _cache_inputs(((0, 512),), 512, 64, 16, _F16)),
    ),
    tolerance={"float": Tolerance(1e-5, 1e-5), "f16": Tolerance(1e-4, 1e-3)},
    cost=_cache_cost,
    order=("triton", "native", "reference"),
)
LATENT_QUERY = Op(
    name="latent_query",
    signature=(
        "q float [T, heads*C+heads*rotated]; rope float32 [positions, rotated]; "
        "inputs StepInputs; weight packed [N, C]; sizes LatentSizes; "
        "write out float [T, heads*latent+heads*rotated]"
    ),
    reference=latent_query,
    custom_invoke=_invoke_query,
    cases=(
        Case("f32-one-token", "f32", _query_inputs("f32", ((9, 1),), _SMALL, 32)),
        Case("f32-uneven", "f32", _query_inputs("f32", _MIXED, _UNEVEN, 24)),
        Case("bf16", "bf16", _query_inputs("bf16", _MIXED, _LITE, 128)),
        Case("f16", "f16", _query_inputs("f16", _MIXED, _SMALL, 48)),
    ),
    benchmarks=(
        Case("v3-T1", "bf16", _query_inputs("bf16", ((511, 1),), _V3, 128)),
        Case("v3-T512", "bf16", _query_inputs("bf16", ((0, 512),), _V3, 128)),
    ),
    tolerance={
        "f32": Tolerance(2e-5, 1e-5),
        "f16": Tolerance(3e-3, 1e-3),
        "bf16": Tolerance(3e-2, 1e-2),
    },
    cost=_query_cost,
    order=("triton", "native", "reference"),
    alone=_attention_alone,
)
