"""Selects the kernels to package: all kernels that the models of `packaged_models.MODELS` launch.

The wrappers run over meta tensors of each model's sizes while launches are only recorded. `_STEP`
has one function per family of ops; it gets the ops, the sizes and the extents of a step, and
launches nothing for layers that a model lacks (experts, for example). Tests compare the signatures
with the launches of a GPU runtime, so that none is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from penstock.kernels.gpu_kv_cache import CacheExtents, allocate_caches
from penstock.kernels.lora_slots import SlotSizes
from penstock.kernels.ops import all_ops
from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.persistent_batch import Adjustments, RowState, StepBuffers, Upload
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.routing import Routing
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import AdapterRows, HeadNorm, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton.compile.launch import ceil_div, record_launches
from penstock.kernels.triton.compile.packaged_models import (
    ACTIVATIONS,
    INTEGERS,
    MODELS,
    STEPS,
    Extents,
    Sizes,
    empty,
    floats,
    ints,
)
from penstock.kernels.triton.compile.signature import Signature
from penstock.kernels.triton.embedding import PackedTable
from penstock.kernels.triton.linear_choice import Float8Choice
from penstock.kernels.triton.matmul.linear import PackedLinear
from penstock.kernels.triton.matmul.linear_float8 import multiply
from penstock.kernels.triton.matmul.packed_weights import PackedDense, PackedFloat8
from penstock.kernels.triton.moe.expert_order import Order
from penstock.kernels.triton.moe.experts_float8 import float8_products
from penstock.kernels.triton.moe.packed_experts import DenseStack, Float8Stack, PackedExperts, Stack
from penstock.kernels.triton.paged_attention.decode_work import AttentionWork, most_units

BLOCK_TOKENS = 16
MOST_GROUPS = 256  # groups of rows by adapter in a step
CACHES = (torch.bfloat16, torch.float8_e4m3fn)


def packaged_signatures(models: Iterable[Sizes] | None = None) -> list[Signature]:
    """Return each distinct signature that the models launch. `models`: None for all `MODELS`."""
    table = KernelRegistry(all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"}))
    ops = TorchOps(table, "meta", ACTIVATIONS)
    distinct: dict[Signature, None] = {}
    with record_launches() as launches:
        for sizes in MODELS.values() if models is None else models:
            for extents in STEPS:
                for family in _STEP:
                    family(ops, sizes, extents)
    for launch in launches:
        distinct.setdefault(launch.signature())
    return list(distinct)


def _layers(sizes: Sizes) -> list[tuple[int, int]]:
    """Return the weight shapes (N, C) of the products in one layer, with merged projections."""
    q_heads, kv_heads, dim = sizes.heads
    layers = [((q_heads + 2 * kv_heads) * dim, sizes.width), (sizes.width, q_heads * dim)]
    if not sizes.experts:
        layers += [(2 * sizes.ff, sizes.width), (sizes.width, sizes.ff)]
    return layers


def _parts(sizes: Sizes) -> list[tuple[int, int]]:
    """Return the shapes (N, C) of the unmerged matrices of one layer: integer matrices are
    multiplied one by one."""
    q_heads, kv_heads, dim = sizes.heads
    parts = [(heads * dim, sizes.width) for heads in (q_heads, kv_heads)]
    parts.append((sizes.width, q_heads * dim))
    return parts if sizes.experts else [*parts, (sizes.ff, sizes.width), (sizes.width, sizes.ff)]


def _inputs(extents: Extents) -> StepInputs[torch.Tensor]:
    tokens, rows = extents.tokens, extents.rows
    return StepInputs(
        tokens=ints(tokens),
        positions=ints(tokens),
        slots=ints(tokens),
        query_starts=ints(rows + 1),
        context_lens=ints(rows),
        block_tables=ints(rows, 2),
        sample_rows=ints(rows),
    )


def _hidden_states(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch the embedding, the norms, the activation, and the gathering of rows for logits."""
    x, weight = empty(extents.tokens, sizes.width), floats(sizes.width)
    q_heads, _, dim = sizes.heads
    table = PackedTable(PackedDense(empty(sizes.vocab, sizes.width)), ACTIVATIONS)
    ops.embedding(table, ints(extents.tokens), 1.0)
    ops.rms_norm(x, weight, 1e-6)
    ops.add_rms_norm(x, x, weight, 1e-6)
    ops.silu_mul(empty(extents.tokens, 2 * sizes.ff))
    for columns in (sizes.width, q_heads * dim):
        ops.gather_rows(empty(extents.tokens, columns), ints(extents.rows))


def _products(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch products of dense weights: the streaming kernel for few tokens, and the tile of
    deterministic mode for any number of tokens."""
    for invariant in (False, True):
        for shape in _layers(sizes):
            if invariant or extents.tokens <= 16:
                part = PackedDense(empty(*shape))
                packed = PackedLinear((part,), _bias(sizes, shape[0]), invariant=invariant)
                ops.linear(empty(extents.tokens, shape[1]), packed)
        if invariant or extents.rows <= 16:
            matrix = PackedDense(empty(sizes.vocab, sizes.width))
            head = PackedLinear((matrix,), None, torch.float32, invariant)
            ops.linear(empty(extents.rows, sizes.width), head)


def _bias(sizes: Sizes, rows: int) -> Any:
    """Return the bias of a product, or None if the model has no biases."""
    return floats(rows) if sizes.oai else None


def _mixture(sizes: Sizes, gate_up: Stack, down: Stack, *, invariant: bool = False) -> Any:
    """Return the packed experts of a layer, with biases if the model has them."""
    packed = PackedExperts((gate_up,), down, invariant)
    if not sizes.oai:
        return packed
    return replace(
        packed,
        gate_up_bias=floats(sizes.experts, 2 * sizes.ff),
        down_bias=floats(sizes.experts, sizes.width),
        activation="swiglu_oai",
    )


def _experts(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch routing and dense experts, with tiles for few tokens and for many."""
    if not sizes.experts:
        return
    x = empty(extents.tokens, sizes.width)
    for invariant in (False, True):
        matrix = PackedDense(empty(sizes.experts, sizes.width))
        router = PackedLinear((matrix,), _bias(sizes, sizes.experts), torch.float32, invariant)
        if invariant or extents.tokens <= 16:
            ops.linear(x, router)
        routing = Routing(sizes.per_token, renormalize=True)
        chosen, shares = ops.route_experts(floats(extents.tokens, sizes.experts), routing)
        gate_up = DenseStack(empty(sizes.experts, 2 * sizes.ff, sizes.width))
        down = DenseStack(empty(sizes.experts, sizes.width, sizes.ff))
        ops.experts(x, chosen, shares, _mixture(sizes, gate_up, down, invariant=invariant))


def _integer_experts(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch experts with each integer type of GGUF files."""
    if not sizes.experts:
        return
    x, chosen = empty(extents.tokens, sizes.width), ints(extents.tokens, sizes.per_token)
    for kind in INTEGERS.values():
        gate_up = kind.stacked(sizes.experts, 2 * sizes.ff, sizes.width)
        down = kind.stacked(sizes.experts, sizes.width, sizes.ff)
        ops.experts(x, chosen, floats(*chosen.shape), _mixture(sizes, gate_up, down))


def _float8_experts(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch experts in 8-bit floats, with the scales of `_float8_forms` and the kernels of
    `_float8_kinds`."""
    if not sizes.experts:
        return
    choices = extents.tokens * sizes.per_token
    for rows, width in ((2 * sizes.ff, sizes.width), (sizes.width, sizes.ff)):
        x, out = empty(choices, width), empty(choices, rows)
        codes = empty(sizes.experts, rows, width, dtype=torch.uint8)
        for grouped, height in _float8_forms(sizes):
            groups = ceil_div(width, FLOAT8_GROUP) if grouped else 1
            scale = floats(sizes.experts, groups, ceil_div(rows, height))
            stack = Float8Stack(codes, scale, height, grouped)
            for kind in _float8_kinds(width):
                for tile in (16, 64) if kind == "widen" else (64,):
                    order = Order(ints(tile), ints(1), ints(1), tile)
                    lists = (order.order, order.tile_expert, order.tiles, choices, 0, rows, 1)
                    float8_products(kind, out, x, stack, order, lists)


def _float8_forms(sizes: Sizes) -> list[tuple[bool, int]]:
    """Return the layouts of scales as (whether a scale covers a group of columns, rows per scale):
    a scale per row, as `--quantize fp8` rounds weights, and block scales if the model also exists
    with them."""
    return [(False, 1), (True, FLOAT8_GROUP)] if sizes.blocks else [(False, 1)]


def _float8_kinds(width: int) -> tuple[Float8Choice, ...]:
    """Return the kernels that can multiply weights of `width` columns; measurements and the GPU
    decide which of them runs."""
    return ("widen", "float8") if width % FLOAT8_GROUP == 0 else ("widen",)


def _float8(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch products of weights in 8-bit floats."""
    for rows, columns in _layers(sizes):
        codes, x = empty(rows, columns, dtype=torch.uint8), empty(extents.tokens, columns)
        for grouped, height in _float8_forms(sizes):
            groups = ceil_div(columns, FLOAT8_GROUP) if grouped else 1
            scale = floats(groups, ceil_div(rows, height))
            part = PackedFloat8(codes, scale, height, grouped)
            for kind in _float8_kinds(columns):
                for invariant in (False, True):
                    out = empty(extents.tokens, rows)
                    multiply(kind, out, x, part, _bias(sizes, rows), 0, invariant)


def _integers(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch products with each integer type of GGUF files: layers, output head and embedding."""
    table = (sizes.vocab, sizes.width)
    for kind in INTEGERS.values():
        ops.embedding(PackedTable(kind.packed(*table), ACTIVATIONS), ints(extents.tokens), 1.0)
        head = PackedLinear((kind.packed(*table),), None, torch.float32)
        ops.linear(empty(extents.rows, sizes.width), head)
        for shape in _parts(sizes):
            packed = PackedLinear((kind.packed(*shape),), _bias(sizes, shape[0]))
            ops.linear(empty(extents.tokens, shape[1]), packed)


def _attention(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch rotation, cache write and attention for every type of KV cache."""
    q_heads, kv_heads, dim = sizes.heads
    norm = HeadNorm(floats(dim), floats(dim), 1e-6) if sizes.head_norm else None
    for dtype in CACHES:
        shape = CacheExtents(1, 2, kv_heads, BLOCK_TOKENS, dim)
        (cache,) = allocate_caches(shape, dtype, "meta")
        inputs = _inputs(extents)
        qkv = empty(extents.tokens, (q_heads + 2 * kv_heads) * dim)
        rotated = ops.rope_cache(qkv, floats(64, dim), inputs, cache, sizes.heads, norm)
        units = most_units(extents.rows, 4096)
        work = AttentionWork.allocate(extents.rows, units, sizes.heads, 0, "meta")
        work.plan(inputs)
        sinks = floats(q_heads) if sizes.oai else None
        ops.attention(rotated, inputs, cache, sizes.heads, 1.0, 0, sinks)


def _adapters(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch LoRA on each linear layer, for few groups of rows and for many."""
    tokens = extents.tokens
    for rows, columns in _layers(sizes):
        slots = ops.adapter_slots(SlotSizes(1, 16, ((columns, (rows,)),), "f16"))
        x, y = empty(tokens, columns), empty(tokens, rows)
        for groups in (1, MOST_GROUPS):
            adapted = AdapterRows(ints(groups), ints(tokens), ints(groups + 1))
            ops.lora(x, y, slots, 0, adapted)


def _rows(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Launch the ops of the persistent batch and of the sampler."""
    rows = extents.rows
    logits = floats(rows, sizes.vocab)
    columns = (floats(rows), ints(rows), floats(rows), floats(rows))
    seed = empty(rows, dtype=torch.int64)
    adjust: Adjustments[Any] = Adjustments(
        presence=floats(rows + 1),
        frequency=floats(rows + 1),
        repetition=floats(rows + 1),
        num_biases=ints(rows + 1),
        num_suppressed=ints(rows + 1),
        suppressed_until=ints(rows + 1),
        counts=ints(rows + 1, sizes.vocab),
        bias_tokens=ints(rows + 1, 2),
        bias_values=floats(rows + 1, 2),
        suppressed=ints(rows + 1, 2),
    )
    tables = (ints(rows + 1), ints(rows + 1), ints(rows + 1, 2))
    state: RowState[Any] = RowState(*tables, *columns, seed, ints(rows + 1), adjust)
    upload: Upload[Any] = Upload(ints(64), num_updates=1)
    slots: StepBuffers[Any] = StepBuffers(_inputs(extents), *columns, seed, seed, ints(rows))
    ops.update_rows(state, upload)
    ops.prepare_step(state, upload, slots, rows, BLOCK_TOKENS)
    sampling: Any = SamplingRows(*columns, seed, seed)
    ops.adjust_logits(logits, sampling)
    ops.adjust_rows(logits, adjust, slots.rows, slots.position)
    ops.append_tokens(state, upload, ints(rows), ops.sample(logits, sampling), rows)


_STEP: tuple[Callable[[TorchOps, Sizes, Extents], None], ...] = (
    _hidden_states,
    _products,
    _float8,
    _integers,
    _experts,
    _integer_experts,
    _float8_experts,
    _attention,
    _adapters,
    _rows,
)
