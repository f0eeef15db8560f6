"""A plan gives the bits of the eager calls at every size, and refuses inputs that point outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("penstock._native")

from decoder_step import (  # noqa: E402
    BLOCKS,
    DECODE,
    LAYERS,
    LONG,
    MAX_BLOCKS,
    MAX_TOKENS,
    MIXED,
    ONE,
    POSITIONS,
    PROMPT,
    VOCAB,
    inputs_of,
    make_model,
    record,
    run,
    visible_ends,
    with_media,
)

from penstock.kernels.native import plan_arguments  # noqa: E402

STEPS = [PROMPT, DECODE, MIXED, ONE, LONG]


def eager_logits(threads: int, isa: str | None) -> list[Any]:
    model = make_model(threads, isa)
    return [model.forward(model.ops, inputs) for inputs in STEPS]


@pytest.mark.parametrize("isa", native.supported_isas())
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_plan_gives_the_bits_of_the_eager_calls(threads: int, isa: str) -> None:
    plan = record(make_model(threads, isa))
    expected = eager_logits(1, isa)
    for inputs, logits in zip(STEPS, expected, strict=True):
        assert np.isfinite(logits).all() and logits.std() > 0
        np.testing.assert_array_equal(run(plan, inputs), logits)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("visible", [False, True])
def test_plan_with_media_gives_the_bits_of_the_eager_calls(threads: int, visible: bool) -> None:
    """In blocks of rows too: a token may then be rotated by a row that another block writes."""
    steps = [with_media(PROMPT)]
    rows = steps[0].media
    if visible:
        rows = replace(rows, visible=visible_ends(PROMPT))
    steps = [with_media(inputs, rows) for inputs in STEPS]
    plan, model = record(make_model(threads), rows), make_model(1)
    for inputs in steps:
        np.testing.assert_array_equal(run(plan, inputs), model.forward(model.ops, inputs))


def test_a_step_of_the_largest_size_after_the_smallest_and_back() -> None:
    model = make_model()
    plan = record(model)
    chunks = [([0, 1, 2, 3, 4, 5], 96, 96), ([6, 7, 8], 48, 48)]
    largest = inputs_of(chunks)
    assert len(largest.tokens) == MAX_TOKENS
    first = run(plan, largest)
    run(plan, inputs_of([([8], 1, 1)]))
    np.testing.assert_array_equal(run(plan, largest), first)


def test_no_sampled_rows_give_no_logits_but_fill_the_cache() -> None:
    model = make_model()
    plan = record(model)
    unsampled = replace(PROMPT, sample_rows=np.empty(0, dtype=np.int32))
    assert run(plan, unsampled).shape == (0, VOCAB)
    expected = eager_logits(1, None)[1]
    np.testing.assert_array_equal(run(plan, DECODE), expected)


def test_logits_are_a_view_that_keeps_the_plan_alive() -> None:
    plan = record(make_model())
    logits = plan.run(*plan_arguments(PROMPT))
    expected = np.array(logits)
    del plan
    np.testing.assert_array_equal(logits, expected)


def test_block_tables_may_be_narrower_than_the_plans() -> None:
    narrow = replace(PROMPT, block_tables=np.ascontiguousarray(PROMPT.block_tables[:, :2]))
    strided = replace(PROMPT, block_tables=PROMPT.block_tables[:, :2])
    expected = run(record(make_model()), PROMPT)
    np.testing.assert_array_equal(run(record(make_model()), narrow), expected)
    np.testing.assert_array_equal(run(record(make_model()), strided), expected)


def test_arena_reuses_memory() -> None:
    """All temporaries of a step side by side would need several times as much."""
    kept = MAX_TOKENS * (2 * 64 + 64) * 4  # the residual before and after, the queries
    assert kept < record(make_model(1)).arena_bytes < 4 * kept


def test_profile_counts_only_while_it_is_on() -> None:
    plan = record(make_model())
    run(plan, PROMPT)
    assert set(plan.profile().values()) == {(0.0, 0)}
    plan.profiling = True
    run(plan, PROMPT)
    profile = plan.profile()
    seconds, calls = profile["paged_attention"]
    assert seconds > 0 and calls == LAYERS
    plan.profiling = False
    run(plan, PROMPT)
    assert plan.profile() == profile


def changed(name: str, index: Any, value: int) -> Any:
    array = np.array(getattr(PROMPT, name))
    array[index] = value
    return replace(PROMPT, **{name: array})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (changed("tokens", 3, VOCAB), "tokens: 200 is not in 0..199"),
        (changed("tokens", 3, -1), "tokens: -1 is not in 0..199"),
        (changed("positions", 3, POSITIONS), "positions: 96 is not in 0..95"),
        (changed("slots", 0, BLOCKS * 16), "slots: 192 is not in 0..191"),
        (changed("slots", 0, int(PROMPT.slots[1])), r"slots: \d+ occurs twice"),
        (changed("query_starts", 0, 1), "query_starts: must run from 0"),
        (changed("query_starts", 1, 0), "query_starts.1.: chunk 0 is empty"),
        (changed("query_starts", 1, 29), "context_lens.0.: 20 is not in 29..96"),
        (changed("query_starts", 2, 28), "query_starts: must run from 0 to the number of tokens"),
        (changed("context_lens", 0, 19), "context_lens.0.: 19 is not in 20..96"),
        (changed("context_lens", 0, 97), "context_lens.0.: 97 is not in 20..96"),
        (changed("context_lens", 1, 17), "block_tables.1.: -7 is not in 0..11"),
        (changed("block_tables", (0, 1), BLOCKS), "block_tables.0.: 12 is not in 0..11"),
        (changed("sample_rows", 1, 29), "sample_rows: 29 is not in 0..28"),
        (changed("sample_rows", 1, -1), "sample_rows: -1 is not in 0..28"),
    ],
)
def test_index_out_of_range_is_refused_before_a_kernel_sees_it(inputs: Any, message: str) -> None:
    plan = record(make_model())
    with pytest.raises(ValueError, match=message):
        run(plan, inputs)
    expected = eager_logits(1, None)[0]
    np.testing.assert_array_equal(run(plan, PROMPT), expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokens": np.zeros(29, np.int64)}, TypeError, "tokens: expected int32, got int64"),
        ({"tokens": np.zeros((29, 1), np.int32)}, ValueError, "tokens: must have 1 dimension"),
        ({"positions": np.zeros(28, np.int32)}, ValueError, "positions: has 28 rows, expected 29"),
        ({"slots": np.zeros(60, np.int32)[::2]}, ValueError, "slots: the last dimension"),
        ({"query_starts": np.zeros(2, np.int32)}, ValueError, "query_starts: has 2 rows"),
        ({"block_tables": np.zeros((3, 6), np.int32)}, ValueError, "block_tables: has 3 rows"),
        (
            {"block_tables": np.zeros((2, MAX_BLOCKS + 1), np.int32)},
            ValueError,
            "block_tables: columns: 7 exceed",
        ),
        ({"sample_rows": np.zeros(9, np.int32)}, ValueError, "sample_rows: 9 exceed"),
    ],
)
def test_inputs_of_wrong_type_or_shape_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    plan = record(make_model())
    with pytest.raises(error, match=message):
        run(plan, replace(PROMPT, **change))


def test_more_tokens_than_recorded_are_refused() -> None:
    plan = record(make_model())
    with pytest.raises(ValueError, match="tokens: 145 exceed the plan's maximum of 144"):
        run(plan, inputs_of([([0, 1, 2, 3, 4, 5], 96, 96), ([6, 7, 8, 9], 49, 49)]))


def test_more_rows_than_recorded_are_refused() -> None:
    plan = record(make_model())
    with pytest.raises(ValueError, match="context_lens: 9 exceed the plan's maximum of 8"):
        run(plan, inputs_of([([i], 1, 1) for i in range(9)]))


def test_only_recorded_tensors_can_be_the_output() -> None:
    model = make_model()
    recorder = model.ops.recorder(4, 2, 2, 1)
    with pytest.raises(TypeError):
        recorder.finish(np.zeros(3, np.float32))


def test_a_plan_tensor_cannot_be_computed_eagerly() -> None:
    model = make_model()
    recorder = model.ops.recorder(4, 2, 2, 1)
    with pytest.raises(TypeError, match="PlanTensor can only be recorded"):
        model.ops.embedding(model.weights["embedding"], recorder.inputs.tokens, 1.0)


def test_reading_a_tensor_that_nothing_wrote_is_refused() -> None:
    recorder = native.Recorder(native.KernelSet("auto"), 4, 2, 2)
    like = recorder.inputs(1)[0]
    like_rows, out = recorder.empty(like, 8), recorder.empty(like, 8)
    with pytest.raises(RuntimeError, match="rms_norm reads tensor 0"):
        recorder.call("rms_norm", [like_rows, np.ones(8, np.float32), out], [], [1e-5])


def test_a_free_extent_does_not_match_a_fixed_one_of_equal_size() -> None:
    recorder = native.Recorder(native.KernelSet("auto"), 4, 4, 4)
    tokens, *_, sample_rows = recorder.inputs(1)
    of_tokens, of_samples = recorder.empty(tokens, 8), recorder.empty(sample_rows, 8)
    with pytest.raises(ValueError, match=r"out: dimension 0 .* with the same axis"):
        recorder.call("rms_norm", [of_tokens, np.ones(8, np.float32), of_samples], [], [1e-5])
    with pytest.raises(ValueError, match=r"out: dimension 0 .* with the same axis"):
        out = np.zeros((4, 8), np.float32)
        recorder.call("rms_norm", [of_tokens, np.ones(8, np.float32), out], [], [1e-5])
