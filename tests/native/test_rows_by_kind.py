"""Prompt tokens are multiplied by integer weights in bf16 tiles, generated ones as ever, whatever
else is in the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decoder_step import DECODE, LONG, MAX_BLOCKS, MIXED, ONE, PROMPT, make_model, record, run
from native_isas import ISAS, native

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.isa.instruction_sets import TILES, IsaSelection
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.weights import Linear

STEPS = [PROMPT, DECODE, MIXED, ONE, LONG]
WITH_TILES = [isa for isa in ISAS if isa in TILES]
SELECTIONS = [
    pytest.param(replace(IsaSelection.all_of(own), prompts=tiles), id=f"{own}-{tiles}")
    for tiles in WITH_TILES
    for own in ISAS
    if own != "scalar"
]


def of_kinds(inputs: StepInputs[Any], kinds: Any) -> StepInputs[Any]:
    is_prompt = np.resize(np.asarray(kinds, np.int32), len(inputs.tokens))
    return replace(inputs, is_prompt=is_prompt, sampled_is_prompt=is_prompt[inputs.sample_rows])


# The kinds of the first tokens of a step, and so on: alternating, in runs, and all alike.
KINDS = [[0, 1], [0] * 3 + [1] * 40 + [0] * 9, [1], [0]]


@pytest.mark.parametrize("isas", SELECTIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_plan_with_kinds_gives_the_bits_of_the_eager_calls(
    isas: IsaSelection, threads: int
) -> None:
    plan, model = record(make_model(threads, isas), kinds=True), make_model(1, isas)
    for kinds in KINDS:
        for inputs in STEPS:
            step = of_kinds(inputs, kinds)
            expected = model.forward(model.ops, step)
            assert np.isfinite(expected).all()
            np.testing.assert_array_equal(run(plan, step), expected)


@pytest.mark.parametrize("isas", SELECTIONS)
def test_generated_tokens_are_computed_as_without_kinds(isas: IsaSelection) -> None:
    plan = record(make_model(2, isas), kinds=True)
    plain = record(make_model(2, isas))
    for inputs in STEPS:
        np.testing.assert_array_equal(run(plan, of_kinds(inputs, [0])), run(plain, inputs))
    assert (run(plan, of_kinds(PROMPT, [1])) != run(plain, PROMPT)).any()


@pytest.mark.parametrize("isas", SELECTIONS)
@pytest.mark.parametrize("form", ["q4_0", "q4_1", "q4_k", "q6_k", "q8_0", "iq4_xs"])
def test_a_row_depends_on_its_own_kind_alone(form: str, isas: IsaSelection) -> None:
    ops = NativeOps.eager(Pool(2), isas)
    draw = RandomInputs(3)
    x = draw.normal(70, 512).numpy()
    packed = ops.pack_linear(Linear((draw.affine(50, 512, form),)))
    ones = np.ones(70, np.int32)
    prompts, plain = ops.linear_by_kind(x, packed, ones), ops.linear(x, packed)
    assert (prompts != plain).any()
    for kinds in (draw.integers(0, 2, 70).numpy(), ones * 0, ones):
        mixed = ops.linear_by_kind(x, packed, kinds)
        np.testing.assert_array_equal(mixed, np.where(kinds[:, None] != 0, prompts, plain))
    for first, last in ((0, 1), (3, 20), (16, 49), (69, 70)):
        part = ops.linear_by_kind(np.ascontiguousarray(x[first:last]), packed, ones[first:last])
        np.testing.assert_array_equal(part, prompts[first:last])


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa not in TILES])
def test_without_tiles_kinds_change_no_bit(isa: str) -> None:
    ops = NativeOps.eager(Pool(2), isa)
    draw = RandomInputs(4)
    x, kinds = draw.normal(9, 64).numpy(), draw.integers(0, 2, 9).numpy()
    packed = ops.pack_linear(Linear((draw.affine(20, 64, "q4_1"),)))
    assert not ops.tells_prompts_apart
    np.testing.assert_array_equal(ops.linear_by_kind(x, packed, kinds), ops.linear(x, packed))


def test_prompts_need_an_isa_with_tiles() -> None:
    isa = next(isa for isa in ISAS if isa not in TILES)
    with pytest.raises(ValueError, match=f"prompts: ISA {isa} has no tiles"):
        native.KernelSet(isa, prompts=isa)


def test_a_call_is_restricted_by_the_kinds_of_tokens_only() -> None:
    ops = NativeOps.eager(Pool(1))
    recorder = ops.recorder(8, 2, 2, 1, kinds=True)
    weight = ops.pack_linear(Linear((RandomInputs(1).affine(8, 32, "q8_0"),)))
    x = recorder.gather_rows(np.zeros((4, 32), np.float32), recorder.inputs.tokens)
    out = recorder._backend.empty(x, weight.quantized_row_bytes, "uint8")
    for flags, value, says in (
        (recorder.inputs.positions, 1, "must be is_prompt or sampled_is_prompt"),
        (recorder.inputs.is_prompt, 2, "value: must be 0 or 1"),
        (x, 1, "must be an input of the recorder"),
    ):
        with pytest.raises(ValueError, match=says):
            recorder._backend.call("quantize_rows", [x, out], weight=weight, only=(flags, value))


def test_a_kind_that_is_neither_is_refused() -> None:
    ops = NativeOps.eager(Pool(1))
    recorder = ops.recorder(8, 2, 2, MAX_BLOCKS, kinds=True)
    weight = ops.pack_linear(Linear((RandomInputs(1).affine(8, 32, "q8_0"),)))
    x = recorder.gather_rows(np.zeros((200, 32), np.float32), recorder.inputs.tokens)
    quantized = recorder._backend.empty(x, weight.quantized_row_bytes, "uint8")
    only = (recorder.inputs.is_prompt, 1)
    recorder._backend.call("quantize_rows", [x, quantized], weight=weight, only=only)
    plan = recorder.finish(x)
    step = of_kinds(DECODE, [1, 2])
    with pytest.raises(ValueError, match=r"is_prompt: 2 is not in 0\.\.1"):
        run(plan, step)
