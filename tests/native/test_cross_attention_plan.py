"""A plan with cross-attention reads the contexts of a second cache, and refuses others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("penstock._native")

from decoder_step import (  # noqa: E402
    BLOCK_TOKENS,
    DECODE,
    HEADS,
    MAX_BLOCKS,
    MAX_ROWS,
    MAX_TOKENS,
    PROMPT,
    Model,
    make_model,
)

from penstock.kernels.native import plan_arguments  # noqa: E402
from penstock.kernels.step_inputs import LayerCache, StepInputs  # noqa: E402

CROSS_BLOCKS = 5  # fewer than the cache of the sequences has
STEPS = [PROMPT, DECODE]


def cross_cache() -> LayerCache[Any]:
    random = np.random.default_rng(1)
    _, heads, dim = HEADS
    keys = random.standard_normal((CROSS_BLOCKS, heads, dim, BLOCK_TOKENS))
    values = random.standard_normal((CROSS_BLOCKS, heads, BLOCK_TOKENS, dim))
    return LayerCache(keys.astype(np.float16), values.astype(np.float16))


def crossing(step: StepInputs[Any]) -> StepInputs[Any]:
    """Return the inputs of cross-attention: row r reads 80 - r positions of the cache."""
    rows = len(step.context_lens)
    tables = np.array([np.roll(np.arange(CROSS_BLOCKS), row) for row in range(rows)], np.int32)
    lengths = CROSS_BLOCKS * BLOCK_TOKENS - np.arange(rows, dtype=np.int32)
    return replace(step, context_lens=lengths, block_tables=tables)


def forward(
    model: Model, ops: Any, step: StepInputs[Any], cross: StepInputs[Any], cache: LayerCache[Any]
) -> Any:
    """Compute self-attention and cross-attention of the embeddings."""
    weights = model.weights
    x = ops.embedding(weights["embedding"], step.tokens, 1.0)
    qkv = ops.linear(x, weights["qkv"])
    q = ops.rope_cache(qkv, weights["rope"], step, model.caches[0], HEADS, None)
    seen = ops.attention(q, step, model.caches[0], HEADS, 0.25, 0)
    seen = ops.bidirectional_attention(seen, cross, cache, HEADS, 0.25, 0)
    return ops.linear(ops.gather_rows(seen, step.sample_rows), weights["output"])


def record(model: Model, cache: LayerCache[Any]) -> Any:
    recorder = model.ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, MAX_BLOCKS, cross=True)
    return recorder.finish(forward(model, recorder, recorder.inputs, recorder.cross_inputs, cache))


@pytest.mark.parametrize("threads", [1, 2])
def test_plan_gives_the_bits_of_the_eager_calls(threads: int) -> None:
    model, cache = make_model(threads), cross_cache()
    plan = record(model, cache)
    for step in STEPS:
        cross = crossing(step)
        expected = forward(model, model.ops, step, cross, cache)
        got = np.array(plan.run(*plan_arguments(step, cross)))
        np.testing.assert_array_equal(got, expected)
        assert not np.array_equal(got, forward(model, model.ops, step, step, model.caches[0]))


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("context_lens", 0, 19, r"context_lens.0.: 19 is not in 20..80"),
        ("context_lens", 1, 81, r"context_lens.1.: 81 is not in 9..80"),
        ("block_tables", (1, 2), CROSS_BLOCKS, r"block_tables.1.: 5 is not in 0..4"),
        ("block_tables", (0, 0), -1, r"block_tables.0.: -1 is not in 0..4"),
    ],
)
def test_contexts_outside_the_second_cache_are_refused(
    name: str, place: Any, value: int, message: str
) -> None:
    plan = record(make_model(), cross_cache())
    cross = crossing(PROMPT)
    changed = np.array(getattr(cross, name))
    changed[place] = value
    with pytest.raises(ValueError, match=message):
        plan.run(*plan_arguments(PROMPT, replace(cross, **{name: changed})))


def test_wrong_shapes_are_refused() -> None:
    plan = record(make_model(), cross_cache())
    cross = crossing(PROMPT)
    wide = np.zeros((2, MAX_BLOCKS + 1), np.int32)
    with pytest.raises(ValueError, match="cross_block_tables: columns: 7 exceed"):
        plan.run(*plan_arguments(PROMPT, replace(cross, block_tables=wide)))
    with pytest.raises(ValueError, match="cross_context_lens: has 1 rows, expected 2"):
        plan.run(*plan_arguments(PROMPT, replace(cross, context_lens=cross.context_lens[:1])))
    with pytest.raises(ValueError, match="recorded with cross_context_lens, cross_block_tables"):
        plan.run(*plan_arguments(PROMPT))


def test_contexts_and_block_tables_must_belong_together() -> None:
    model, cache = make_model(), cross_cache()
    recorder = model.ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, MAX_BLOCKS, cross=True)
    assert recorder.cross_inputs is not None
    mixed = replace(recorder.inputs, context_lens=recorder.cross_inputs.context_lens)
    with pytest.raises(ValueError, match="must be inputs that belong together"):
        forward(model, recorder, recorder.inputs, mixed, cache)
