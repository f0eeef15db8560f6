"""A small decoder's step over any `Ops`, with weights of several kinds, for plan and pool tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.isa.instruction_sets import IsaSelection
from penstock.kernels.native import NativeOps, plan_arguments
from penstock.kernels.step_inputs import HeadNorm, LayerCache, MediaRows, StepInputs
from penstock.kernels.weights import Affine, Dense, Linear

WIDTH, FEED, VOCAB = 64, 96, 200
HEADS = (4, 2, 16)  # query heads, KV heads, head dimension
BLOCKS, BLOCK_TOKENS, MAX_BLOCKS = 12, 16, 6
POSITIONS = MAX_BLOCKS * BLOCK_TOKENS
LAYERS = 2
MAX_TOKENS, MAX_ROWS = 144, 8


def inputs_of(chunks: list[tuple[list[int], int, int]]) -> StepInputs[npt.NDArray[np.int32]]:
    """Return a step of chunks (block table, context length, tokens of the chunk); each is sampled
    once."""
    positions, slots, starts, rows = [], [], [0], []
    for table, context, num_tokens in chunks:
        for position in range(context - num_tokens, context):
            positions.append(position)
            slots.append(table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS)
        starts.append(len(positions))
        rows.append(len(positions) - 1)
    tables = np.full((len(chunks), MAX_BLOCKS), -7, dtype=np.int32)
    for row, (table, _, _) in enumerate(chunks):
        tables[row, : len(table)] = table
    tokens = (np.arange(len(positions)) * 37 + 11) % VOCAB
    contexts = [context for _, context, _ in chunks]
    vectors = (
        np.array(values, dtype=np.int32)
        for values in (tokens, positions, slots, starts, contexts, tables, rows)
    )
    return StepInputs(*vectors)


PROMPT = inputs_of([([3, 5], 20, 20), ([1], 9, 9)])
DECODE = inputs_of([([3, 5], 21, 1), ([1], 10, 1)])
MIXED = inputs_of([([3, 5], 22, 1), ([7, 2, 4], 40, 40), ([1], 11, 1)])
ONE = inputs_of([([3, 5], 23, 1)])
# Enough tokens for one or two threads to run the plan in blocks of rows.
LONG = inputs_of([([0, 6, 8, 9, 10, 11], 96, 96), ([7, 2, 4], 44, 4), ([1, 3, 5], 36, 36)])


def with_media(inputs: StepInputs[Any], rows: MediaRows[Any] | None = None) -> StepInputs[Any]:
    """Return the step with media for two thirds of its tokens. `rows`: the buffers to use."""
    count = len(inputs.tokens)
    random = np.random.default_rng(count)
    places = np.arange(count, dtype=np.int32)
    if rows is None:
        rows = MediaRows(places, *random.normal(0, 1, (1, 50, WIDTH)).astype(np.float32))
        rows = replace(rows, deep=(rows.rows * 2,))
    index = random.integers(0, 50, count).astype(np.int32)
    index[::3] = -1
    positions = tuple(random.integers(0, POSITIONS, (3, count)).astype(np.int32))
    media = replace(rows, index=index, rope_positions=positions, rope_rows=places)
    if rows.visible is not None:
        media = replace(media, visible=visible_ends(inputs))
    return replace(inputs, media=media)


def visible_ends(inputs: StepInputs[Any]) -> npt.NDArray[np.int32]:
    """Return ends for which the tokens of the second half of each chunk see each other."""
    ends = inputs.positions + 1
    for first, last, context in zip(
        inputs.query_starts, inputs.query_starts[1:], inputs.context_lens, strict=False
    ):
        ends[(first + last) // 2 : last] = context
    return ends


@dataclass
class Model:
    """Packed weights and a cache. `forward` returns logits [S, VOCAB]."""

    ops: NativeOps
    caches: list[LayerCache[Any]]
    weights: dict[str, Any]

    def forward(self, ops: Any, inputs: StepInputs[Any]) -> Any:
        w = self.weights

        def linear(x: Any, weight: Any) -> Any:
            if inputs.is_prompt is None:
                return ops.linear(x, weight)
            return ops.linear_by_kind(x, weight, inputs.is_prompt)

        x = ops.embedding(w["embedding"], inputs.tokens, 1.0)
        rope, positioned = w["rope"], inputs
        if inputs.media is not None:
            x = ops.replace_rows(x, inputs.media.rows, inputs.media.index)
            rope = ops.mrope_rows(rope, *inputs.media.rope_positions, w["axis"])
            positioned = replace(inputs, positions=inputs.media.rope_rows)
        residual = x
        for layer, cache in enumerate(self.caches):
            if layer == 0:
                x = ops.rms_norm(x, w["norm"], 1e-5)
            else:
                x, residual = ops.add_rms_norm(x, residual, w["norm"], 1e-5)
            head_norm = HeadNorm(w["head_norm"], w["head_norm"], 1e-6) if layer else None
            qkv = linear(x, w["qkv"])
            q = ops.rope_cache(qkv, rope, positioned, cache, HEADS, head_norm)
            x = linear(ops.attention(q, inputs, cache, HEADS, 0.25, 0), w["output"])
            x, residual = ops.add_rms_norm(x, residual, w["norm"], 1e-5)
            x = linear(ops.silu_mul(linear(x, w["gate_up"])), w["down"])
            if inputs.media is not None:
                x = ops.add_rows(x, inputs.media.deep[0], inputs.media.index)
        x = ops.gather_rows(x, inputs.sample_rows)
        return ops.linear(x, w["head"])


def affine(random: np.random.Generator, rows: int, depth: int) -> Affine:
    q = random.integers(0, 256, (rows, depth // 2), dtype=np.uint8)
    scale = random.uniform(0.01, 0.03, (rows, depth // 32)).astype(np.float16)
    return Affine(4, 32, q, scale, zero_point=8)


def dense(random: np.random.Generator, rows: int, depth: int) -> Dense:
    return Dense(random.normal(0, 0.1, (rows, depth)).astype(np.float32), "f32")


def make_model(threads: int = 2, isa: str | IsaSelection | None = None) -> Model:
    from penstock import _native

    random = np.random.default_rng(5)
    ops = NativeOps.eager(_native.ThreadPool(threads), isa)
    query, kv, dim = HEADS
    head, head_table = ops.pack_tied(affine(random, VOCAB, WIDTH))
    # q integer, k and v dense: one product of both kinds
    mixed = (affine(random, query * dim, WIDTH), dense(random, 2 * kv * dim, WIDTH))
    bias = random.normal(0, 0.1, (query + 2 * kv) * dim).astype(np.float32)
    weights = {
        "embedding": head_table,
        "head": head,
        "norm": ops.constant(random.uniform(0.5, 1.5, WIDTH).astype(np.float32)),
        "head_norm": ops.constant(random.uniform(0.5, 1.5, dim).astype(np.float32)),
        "rope": ops.constant(random.uniform(-1, 1, (POSITIONS, dim)).astype(np.float32)),
        "axis": np.arange(dim // 2, dtype=np.int32) % 3,
        "qkv": ops.pack_linear(Linear(mixed, bias)),
        "output": ops.pack_linear(Linear((dense(random, WIDTH, query * dim),))),
        "gate_up": ops.pack_linear(Linear((affine(random, 2 * FEED, WIDTH),))),
        "down": ops.pack_linear(Linear((affine(random, WIDTH, FEED),))),
    }
    keys, values = (BLOCKS, kv, dim, BLOCK_TOKENS), (BLOCKS, kv, BLOCK_TOKENS, dim)
    caches = [
        LayerCache(np.zeros(keys, np.float16), np.zeros(values, np.float16)) for _ in range(LAYERS)
    ]
    return Model(ops, caches, weights)


def record(model: Model, media: MediaRows[Any] | None = None, *, kinds: bool = False) -> Any:
    sizes = MAX_TOKENS, MAX_ROWS, MAX_ROWS, MAX_BLOCKS
    recorder = model.ops.recorder(*sizes, media=media, kinds=kinds)
    return recorder.finish(model.forward(recorder, recorder.inputs))


def run(plan: Any, inputs: StepInputs[Any]) -> npt.NDArray[np.float32]:
    """Return the logits of a replay, copied from the plan's memory."""
    return np.array(plan.run(*plan_arguments(inputs)))
