"""Which kernels are packaged: those that the models in `MODELS` launch, found by launching them.

The wrappers run over meta tensors of each model's sizes while launches are only noted. A family of
ops adds what it launches to `_STEP`, as a function of the ops, the sizes and the extents of a step:
what a model lacks (experts, say) it simply does not launch. Tests hold the list against what the
runtime of a GPU launches, so nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from penstock.kernels.gpu_cache import CacheExtents, allocate_caches
from penstock.kernels.lora import SlotSizes
from penstock.kernels.op import KernelTable, Machine
from penstock.kernels.ops import all_ops
from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.rows import RowState, StepSlots, Upload
from penstock.kernels.sampling import SamplingRows
from penstock.kernels.table import AdapterRows, HeadNorm, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton.attention_work import AttentionWork, most_units
from penstock.kernels.triton.embedding import PackedTable
from penstock.kernels.triton.experts_float8 import float8_products
from penstock.kernels.triton.experts_order import Order
from penstock.kernels.triton.experts_packed import DenseStack, Float8Stack, PackedExperts
from penstock.kernels.triton.launch import ceil_div, noting
from penstock.kernels.triton.linear import PackedLinear
from penstock.kernels.triton.linear_choice import Float8Choice
from penstock.kernels.triton.linear_float8 import multiply
from penstock.kernels.triton.packed import PackedAffine, PackedDense, PackedFloat8
from penstock.kernels.triton.signature import Signature

BLOCK_TOKENS = 16
MOST_GROUPS = 256  # rows of a step by their adapters
ACTIVATIONS = torch.bfloat16
CACHES = (torch.bfloat16, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a decoder: what its kernels are compiled for. With `experts` each feed-forward is a
    mixture: `per_token` of them, of `ff`."""

    width: int
    heads: tuple[int, int, int]  # query heads, KV heads, head dim
    ff: int
    vocab: int
    head_norm: bool
    experts: int = 0
    per_token: int = 0
    blocks: bool = False  # 8-bit floats with scales of blocks are of this model too


MODELS = {
    "Qwen3-0.6B": Sizes(1024, (16, 8, 128), 3072, 151936, True),
    "Qwen3-1.7B": Sizes(2048, (16, 8, 128), 6144, 151936, True),
    "Qwen3-4B": Sizes(2560, (32, 8, 128), 9728, 151936, True),
    "Qwen3-8B": Sizes(4096, (32, 8, 128), 12288, 151936, True, blocks=True),
    "Qwen3-14B": Sizes(5120, (40, 8, 128), 17408, 151936, True),
    "Qwen3-30B-A3B": Sizes(2048, (32, 4, 128), 768, 151936, True, 128, 8, True),
    "Llama-3.2-1B": Sizes(2048, (32, 8, 64), 8192, 128256, False),
    "Llama-3.2-3B": Sizes(3072, (24, 8, 128), 8192, 128256, False),
    "Llama-3.1-8B": Sizes(4096, (32, 8, 128), 14336, 128256, False, blocks=True),
    "Mistral-7B-v0.3": Sizes(4096, (32, 8, 128), 14336, 32768, False, blocks=True),
}


@dataclass(frozen=True, slots=True)
class Integers:
    """How a type of a GGUF file is held: bits, columns of a group, whether it has minima, and what
    its scales are."""

    bits: int
    group: int
    zero_point: int | None  # None: it has minima
    scale: torch.dtype = torch.float16

    def packed(self, rows: int, width: int) -> PackedAffine:
        """A matrix of this type."""
        scale = _empty(width // self.group, rows, dtype=self.scale)
        minimum = scale if self.zero_point is None else None
        q = _empty(rows, width * self.bits // 8, dtype=torch.uint8)
        return PackedAffine(q, scale, minimum, self.bits, self.group, self.zero_point or 0)


INTEGERS = {
    "Q4_0": Integers(4, 32, 8),
    "Q4_1": Integers(4, 32, None),
    "Q8_0": Integers(8, 32, 128),
    "Q4_K": Integers(4, 32, None, torch.float32),
    "Q5_K": Integers(8, 32, None, torch.float32),
    "Q6_K": Integers(8, 16, 32, torch.float32),
}


@dataclass(frozen=True, slots=True)
class Extents:
    """Of a step: `tokens` of `rows` chunks, all of which draw."""

    tokens: int
    rows: int


# One for each way that extents change a tile: few tokens and many, one a row, short chunks, long.
STEPS = (Extents(1, 1), Extents(40, 40), Extents(40, 2), Extents(2048, 1))


def shipped(models: Iterable[Sizes] | None = None) -> list[Signature]:
    """Each signature that those models launch, once; of all `MODELS` where it is None."""
    table = KernelTable(all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"}))
    ops = TorchOps(table, "meta", ACTIVATIONS)
    distinct: dict[Signature, None] = {}
    with noting() as launches:
        for sizes in MODELS.values() if models is None else models:
            for extents in STEPS:
                for family in _STEP:
                    family(ops, sizes, extents)
    for launch in launches:
        distinct.setdefault(launch.signature())
    return list(distinct)


def _empty(*shape: int, dtype: torch.dtype = ACTIVATIONS) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def _ints(*shape: int) -> Any:
    return _empty(*shape, dtype=torch.int32)


def _floats(*shape: int) -> Any:
    return _empty(*shape, dtype=torch.float32)


def _layers(sizes: Sizes) -> list[tuple[int, int]]:
    """[N, K] of the products of a layer."""
    q_heads, kv_heads, dim = sizes.heads
    layers = [((q_heads + 2 * kv_heads) * dim, sizes.width), (sizes.width, q_heads * dim)]
    if not sizes.experts:
        layers += [(2 * sizes.ff, sizes.width), (sizes.width, sizes.ff)]
    return layers


def _inputs(extents: Extents) -> StepInputs[torch.Tensor]:
    tokens, rows = extents.tokens, extents.rows
    return StepInputs(
        tokens=_ints(tokens),
        positions=_ints(tokens),
        slots=_ints(tokens),
        query_starts=_ints(rows + 1),
        context_lens=_ints(rows),
        block_tables=_ints(rows, 2),
        sample_rows=_ints(rows),
    )


def _hidden_states(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Embedding, norms, the activation, and the rows whose logits are wanted, of the residual and
    of what attention made."""
    x, weight = _empty(extents.tokens, sizes.width), _floats(sizes.width)
    q_heads, _, dim = sizes.heads
    table = PackedTable(PackedDense(_empty(sizes.vocab, sizes.width)), ACTIVATIONS)
    ops.embedding(table, _ints(extents.tokens), 1.0)
    ops.rms_norm(x, weight, 1e-6)
    ops.add_rms_norm(x, x, weight, 1e-6)
    ops.silu_mul(_empty(extents.tokens, 2 * sizes.ff))
    for columns in (sizes.width, q_heads * dim):
        ops.gather_rows(_empty(extents.tokens, columns), _ints(extents.rows))


def _products(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Dense weights: streamed for few tokens, and the one tile of deterministic answers."""
    for invariant in (False, True):
        for shape in _layers(sizes):
            if invariant or extents.tokens <= 16:
                packed = PackedLinear((PackedDense(_empty(*shape)),), None, invariant=invariant)
                ops.linear(_empty(extents.tokens, shape[1]), packed)
        if invariant or extents.rows <= 16:
            matrix = PackedDense(_empty(sizes.vocab, sizes.width))
            head = PackedLinear((matrix,), None, torch.float32, invariant)
            ops.linear(_empty(extents.rows, sizes.width), head)


def _experts(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """What chooses experts, and these: with tiles for few tokens and for many."""
    if not sizes.experts:
        return
    x = _empty(extents.tokens, sizes.width)
    for invariant in (False, True):
        matrix = PackedDense(_empty(sizes.experts, sizes.width))
        router = PackedLinear((matrix,), None, torch.float32, invariant)
        if invariant or extents.tokens <= 16:
            ops.linear(x, router)
        chosen, shares = ops.route_experts(
            _floats(extents.tokens, sizes.experts), sizes.per_token, True
        )
        gate_up = DenseStack(_empty(sizes.experts, 2 * sizes.ff, sizes.width))
        down = DenseStack(_empty(sizes.experts, sizes.width, sizes.ff))
        ops.experts(x, chosen, shares, PackedExperts((gate_up,), down, invariant))


def _float8_experts(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Experts in 8-bit floats, in the forms and by the kernels of `_float8`."""
    if not sizes.experts:
        return
    choices = extents.tokens * sizes.per_token
    for rows, width in ((2 * sizes.ff, sizes.width), (sizes.width, sizes.ff)):
        x, out = _empty(choices, width), _empty(choices, rows)
        codes = _empty(sizes.experts, rows, width, dtype=torch.uint8)
        for grouped, height in _float8_forms(sizes):
            groups = ceil_div(width, FLOAT8_GROUP) if grouped else 1
            scale = _floats(sizes.experts, groups, ceil_div(rows, height))
            stack = Float8Stack(codes, scale, height, grouped)
            for kind in _float8_kinds(width):
                for tile in (16, 64) if kind == "widen" else (64,):
                    order = Order(_ints(tile), _ints(1), _ints(1), tile)
                    lists = (order.order, order.tile_expert, order.tiles, choices, 0, rows, 1)
                    float8_products(kind, out, x, stack, order, lists)


def _float8_forms(sizes: Sizes) -> list[tuple[bool, int]]:
    """Whether scales belong to groups of columns, and to how many rows: as `--quantize fp8` rounds
    weights; of models that come so, in blocks too."""
    return [(False, 1), (True, FLOAT8_GROUP)] if sizes.blocks else [(False, 1)]


def _float8_kinds(width: int) -> tuple[Float8Choice, ...]:
    """By either kernel: which one serves is a matter of what was measured, and of the GPU."""
    return ("widen", "float8") if width % FLOAT8_GROUP == 0 else ("widen",)


def _float8(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Layers' weights in 8-bit floats."""
    for rows, columns in _layers(sizes):
        codes, x = _empty(rows, columns, dtype=torch.uint8), _empty(extents.tokens, columns)
        for grouped, height in _float8_forms(sizes):
            groups = ceil_div(columns, FLOAT8_GROUP) if grouped else 1
            scale = _floats(groups, ceil_div(rows, height))
            part = PackedFloat8(codes, scale, height, grouped)
            for kind in _float8_kinds(columns):
                for invariant in (False, True):
                    out = _empty(extents.tokens, rows)
                    multiply(kind, out, x, part, None, 0, invariant)


def _integers(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Affine weights as GGUF files have them: of layers, of the head and of the embedding."""
    table = (sizes.vocab, sizes.width)
    for kind in INTEGERS.values():
        ops.embedding(PackedTable(kind.packed(*table), ACTIVATIONS), _ints(extents.tokens), 1.0)
        head = PackedLinear((kind.packed(*table),), None, torch.float32)
        ops.linear(_empty(extents.rows, sizes.width), head)
        for shape in _layers(sizes):
            ops.linear(_empty(extents.tokens, shape[1]), PackedLinear((kind.packed(*shape),), None))


def _attention(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Rotation, cache and attention, for every type of cache."""
    q_heads, kv_heads, dim = sizes.heads
    norm = HeadNorm(_floats(dim), _floats(dim), 1e-6) if sizes.head_norm else None
    for dtype in CACHES:
        shape = CacheExtents(1, 2, kv_heads, BLOCK_TOKENS, dim)
        (cache,) = allocate_caches(shape, dtype, "meta")
        inputs = _inputs(extents)
        qkv = _empty(extents.tokens, (q_heads + 2 * kv_heads) * dim)
        rotated = ops.rope_cache(qkv, _floats(64, dim), inputs, cache, sizes.heads, norm)
        units = most_units(extents.rows, 4096)
        work = AttentionWork.allocate(extents.rows, units, sizes.heads, 0, "meta")
        work.plan(inputs)
        ops.attention(rotated, inputs, cache, sizes.heads, 1.0, 0)


def _adapters(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """Adapters of low rank on a linear layer: few groups of rows, and many."""
    tokens = extents.tokens
    for rows, columns in _layers(sizes):
        slots = ops.adapter_slots(SlotSizes(1, 16, ((columns, (rows,)),), "f16"))
        x, y = _empty(tokens, columns), _empty(tokens, rows)
        for groups in (1, MOST_GROUPS):
            adapted = AdapterRows(_ints(groups), _ints(tokens), _ints(groups + 1))
            ops.lora(x, y, slots, 0, adapted)


def _rows(ops: TorchOps, sizes: Sizes, extents: Extents) -> None:
    """The table of rows, and the draw."""
    rows = extents.rows
    logits = _floats(rows, sizes.vocab)
    draws = (_floats(rows), _ints(rows), _floats(rows), _floats(rows))
    seed = _empty(rows, dtype=torch.int64)
    state: RowState[Any] = RowState(
        _ints(rows + 1), _ints(rows + 1), _ints(rows + 1, 2), *draws, seed
    )
    upload: Upload[Any] = Upload(_ints(64), num_updates=1)
    slots: StepSlots[Any] = StepSlots(_inputs(extents), *draws, seed, seed)
    ops.update_rows(state, upload)
    ops.prepare_step(state, upload, slots, rows, BLOCK_TOKENS)
    sampling: Any = SamplingRows(*draws, seed, seed)
    ops.adjust_logits(logits, sampling)
    ops.append_tokens(state, upload, _ints(rows), ops.sample(logits, sampling), rows)


_STEP: tuple[Callable[[TorchOps, Sizes, Extents], None], ...] = (
    _hidden_states,
    _products,
    _float8,
    _integers,
    _experts,
    _float8_experts,
    _attention,
    _adapters,
    _rows,
)
