"""Adapter slots from Python: refused arguments, and plans after a slot changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("penstock._native")

from penstock.kernels.load_ops import load_ops  # noqa: E402
from penstock.kernels.lora_slots import LoraFactors, SlotSizes  # noqa: E402
from penstock.kernels.native import plan_arguments  # noqa: E402
from penstock.kernels.step_inputs import AdapterRows, StepInputs  # noqa: E402
from penstock.kernels.weights import Dense, Linear  # noqa: E402

WIDTH, OUT = 32, 48
SIZES = SlotSizes(capacity=3, max_rank=8, linears=((WIDTH, (16, 32)),))


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def factors(seed: int, rank: int = 4, scale: float = 1.0) -> tuple[LoraFactors, LoraFactors]:
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    return LoraFactors(draw(rank, WIDTH), draw(16, rank)), LoraFactors(
        draw(rank, WIDTH), draw(32, rank)
    )


def rows(slots: Any, order: Any, starts: Any) -> AdapterRows[Any]:
    return AdapterRows(slots, order, starts)


def ops() -> Any:
    return load_ops("native", pool=native.ThreadPool(2))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rows(ints(3, 0), ints(0, 1, 2, 3), ints(0, 1, 4)), "slots: 3 is not in 0..2"),
        (rows(ints(-1, 0), ints(0, 1, 2, 3), ints(0, 1, 4)), "slots: -1 is not in 0..2"),
        (rows(ints(0, 1), ints(0, 1, 4, 3), ints(0, 1, 4)), "order: 4 is not in 0..3"),
        (rows(ints(0, 1), ints(0, 1, 1, 3), ints(0, 1, 4)), "order: 1 occurs twice"),
        (rows(ints(0, 1), ints(0, 1, 2, 3), ints(0, 1, 5)), "starts: end at 5 of 4 rows"),
        (rows(ints(0, 1), ints(0, 1, 2, 3), ints(0, 3, 2)), "starts: must ascend"),
        (rows(ints(0, 1), ints(0, 1, 2), ints(0, 1, 2)), "order: dimension 0 is 3, expected T"),
        (rows(ints(0, 1), ints(0, 1, 2, 3), ints(0, 1)), "starts: dimension 0 is 2, expected R"),
    ],
)
def test_groups_out_of_range_are_refused(rows: AdapterRows[Any], message: str) -> None:
    own = ops()
    x, y = np.ones((4, WIDTH), np.float32), np.ones((4, OUT), np.float32)
    with pytest.raises(ValueError, match=message):
        own.lora(x, y, own.adapter_slots(SIZES), 0, rows)


def test_factors_that_do_not_fit_the_slots_are_refused() -> None:
    slots = ops().adapter_slots(SIZES)
    q, kv = factors(0)
    for given, message in (
        ([(q,)], "an entry for each slice"),
        ([(q, q)], r"b: must be float32 \[32, 4\]"),
        ([(LoraFactors(q.a[:, :16].copy(), q.b), None)], r"a: must be float32 \[4, 32\]"),
        ([(LoraFactors(np.ones((9, WIDTH), np.float32), q.b), None)], "rank must be in 1..8"),
        ([(q, LoraFactors(kv.a.astype(np.float64), kv.b))], "a: "),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            slots.pack(given)
    other = ops().adapter_slots(replace(SIZES, linears=((WIDTH, (32, 16)),)))
    with pytest.raises(ValueError, match="packed for slots of other shapes"):
        other.install(0, slots.pack([(q, kv)]))
    with pytest.raises(ValueError, match=r"slot: must be in 0..2"):
        slots.install(3, slots.pack([(q, kv)]))


@pytest.mark.parametrize(("storage_dtype", "error"), [("f32", 1e-6), ("f16", 4e-4), ("i8", 1.2e-2)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_stored_factors_are_near_the_given_ones(
    storage_dtype: Any, error: float, scale: float
) -> None:
    """For any magnitude: a rank is stored relative to its largest element."""
    own = ops()
    slots = own.adapter_slots(replace(SIZES, storage_dtype=storage_dtype))
    slots.install(1, slots.pack([factors(0, scale=scale)]))
    x = np.random.default_rng(1).standard_normal((64, WIDTH)).astype(np.float32)
    y = np.zeros((64, OUT), np.float32)
    everyone = rows(ints(1), np.arange(64, dtype=np.int32), ints(0, 64))
    own.lora(x, y, slots, 0, everyone)
    truth = np.concatenate([(x @ one.a.T) @ one.b.T for one in factors(0, scale=scale)], axis=1)
    assert np.sqrt(((y - truth) ** 2).mean() / (truth**2).mean()) < error


@pytest.mark.parametrize("storage_dtype", ["f32", "f16", "i8"])
def test_bits_do_not_depend_on_the_number_of_threads(storage_dtype: Any) -> None:
    """With few threads a block of rows is one task; with many both products are divided."""
    random = np.random.default_rng(6)
    given = random.standard_normal((21, WIDTH)).astype(np.float32)
    mixed = rows(ints(0, 1, 2), random.permutation(21).astype(np.int32), ints(0, 3, 20, 20))

    def run(threads: int) -> Any:
        own = load_ops("native", pool=native.ThreadPool(threads))
        slots = own.adapter_slots(replace(SIZES, storage_dtype=storage_dtype))
        for slot, rank in ((0, 5), (1, 8)):
            slots.install(slot, slots.pack([factors(slot, rank)]))
        return own.lora(given, np.ones((21, OUT), np.float32), slots, 0, mixed)

    assert (run(1) == run(2)).all() and (run(1) == run(16)).all()


def test_products_of_8_bits_do_not_overflow() -> None:
    """Every number is the largest of its format: long sums are split before they overflow."""
    width, rank, out = 20_000, 1500, 8
    own = ops()
    slots = own.adapter_slots(SlotSizes(1, rank, ((width, (out,)),), "i8"))
    a, b = np.ones((rank, width), np.float32), np.ones((out, rank), np.float32)
    slots.install(0, slots.pack([(LoraFactors(a, b),)]))
    x, y = np.ones((1, width), np.float32), np.zeros((1, out), np.float32)
    own.lora(x, y, slots, 0, rows(ints(0), ints(0), ints(0, 1)))
    np.testing.assert_allclose(y, width * rank, rtol=1e-6)


@pytest.mark.parametrize("storage_dtype", ["f32", "i8"])
@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf])
def test_a_row_with_nan_affects_no_other_row(storage_dtype: Any, spoiled: float) -> None:
    own = ops()
    slots = own.adapter_slots(replace(SIZES, storage_dtype=storage_dtype))
    slots.install(0, slots.pack([factors(7)]))
    x = np.random.default_rng(8).standard_normal((3, WIDTH)).astype(np.float32)
    clean = own.lora(
        x, np.ones((3, OUT), np.float32), slots, 0, rows(ints(0), ints(0, 1, 2), ints(0, 3))
    )
    x[1, 3] = spoiled
    y = own.lora(
        x, np.ones((3, OUT), np.float32), slots, 0, rows(ints(0), ints(0, 1, 2), ints(0, 3))
    )
    assert not np.isfinite(y[1]).any() and (y[[0, 2]] == clean[[0, 2]]).all()


def test_a_plan_uses_adapters_installed_after_it_was_recorded() -> None:
    own = ops()
    slots = own.adapter_slots(SIZES)
    recorder = own.recorder(8, 4, 4, 1, adapters=True)
    inputs = recorder.inputs
    table = own.pack_embedding(
        Dense(np.random.default_rng(2).standard_normal((20, WIDTH)).astype(np.float32), "f32")
    )
    weight = own.pack_linear(Linear((Dense(np.zeros((OUT, WIDTH), np.float32), "f32"),)))

    def step(ops: Any, inputs: StepInputs[Any]) -> Any:
        x = ops.embedding(table, inputs.tokens, 1.0)
        y = ops.lora(x, ops.linear(x, weight), slots, 0, inputs.adapters)
        x, y = ops.gather_rows(x, inputs.sample_rows), ops.gather_rows(y, inputs.sample_rows)
        return ops.lora(x, y, slots, 0, inputs.sampled_adapters)

    plan = recorder.finish(step(recorder, inputs))
    given = StepInputs(
        tokens=ints(4, 9, 2),
        positions=ints(0, 0, 0),
        slots=ints(0, 1, 2),
        query_starts=ints(0, 1, 2, 3),
        context_lens=ints(1, 1, 1),
        block_tables=np.zeros((3, 1), np.int32),
        sample_rows=ints(2, 0),
        adapters=AdapterRows(ints(2, 0, 7), ints(1, 2, 0), ints(0, 1, 3, 3)),
        sampled_adapters=AdapterRows(ints(2, 0, 7), ints(0, 1), ints(0, 0, 2, 2)),
    )
    before = plan.run(*plan_arguments(given)).copy()
    assert not before.any()
    slots.install(0, slots.pack([factors(3)]))
    slots.install(2, slots.pack([factors(4)]))
    after = plan.run(*plan_arguments(given)).copy()
    assert after.any() and (after == step(own, given)).all()
    slots.install(0, slots.pack([(None, factors(5)[1])]))
    replaced = plan.run(*plan_arguments(given)).copy()
    assert not replaced[:, :16].any() and (replaced[:, 16:] != after[:, 16:]).all()
    slots.clear(0)
    assert not plan.run(*plan_arguments(given)).any()
    with pytest.raises(ValueError, match="the plan was recorded with adapter_slots, "):
        plan.run(*plan_arguments(replace(given, adapters=None)))
    wrong = replace(given, adapters=replace(given.adapters, slots=ints(2, 5, 7)))
    with pytest.raises(ValueError, match=r"adapter_slots: 5 is not in 0..2"):
        plan.run(*plan_arguments(wrong))
