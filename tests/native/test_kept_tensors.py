"""A plan keeps further results of a run, with the bits of the eager calls."""

from __future__ import annotations

import numpy as np
import pytest

native = pytest.importorskip("penstock._native")

from decoder_step import (  # noqa: E402
    DECODE,
    LONG,
    MAX_BLOCKS,
    MAX_ROWS,
    MAX_TOKENS,
    MIXED,
    ONE,
    PROMPT,
    WIDTH,
    make_model,
    run,
)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_kept_tensor_has_the_bits_of_the_eager_calls(threads: int) -> None:
    """Long steps run in blocks of rows. The memory of the tensor serves no later call."""
    model, other = make_model(threads), make_model(1)
    recorder = model.ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, MAX_BLOCKS)

    def normalized(ops, packed, inputs):  # type: ignore[no-untyped-def]
        weights = packed.weights
        x = ops.embedding(weights["embedding"], inputs.tokens, 1.0)
        return ops.rms_norm(x, weights["norm"], 1e-5)

    kept = normalized(recorder, model, recorder.inputs)
    recorder.keep(kept)
    plan = recorder.finish(model.forward(recorder, recorder.inputs))
    for inputs in (PROMPT, DECODE, MIXED, ONE, LONG):
        logits = run(plan, inputs)
        np.testing.assert_array_equal(plan.kept(0), normalized(other.ops, other, inputs))
        np.testing.assert_array_equal(logits, other.forward(other.ops, inputs))
    with pytest.raises(IndexError, match="the plan keeps 1 tensors"):
        plan.kept(1)


def test_a_tensor_without_a_result_cannot_be_kept() -> None:
    model = make_model()
    recorder = model.ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, MAX_BLOCKS)
    empty = recorder._backend.empty(recorder.inputs.tokens, WIDTH)
    with pytest.raises(RuntimeError, match="keep: no call has written the tensor"):
        recorder.keep(empty)
    with pytest.raises(TypeError):
        recorder.keep(np.zeros((3, WIDTH), np.float32))
