"""Adapters on the runtime of a GPU, rehearsed on CPU tensors: any mix answers as each request alone
and as the CPU's reference does, and a row as merged weights would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from lora_base_models import (
    LORA,
    draw_adapters,
    settings,
    start,
    with_adapters,
    write_merged,
    write_quantized,
)
from scheduled_requests import Outcome, Request, generate, requests_over, scheduler_of

from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.scheduler import NO_ADAPTER
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

# slot of each of the nine requests: base and four adapters, neighbours that share a prefix differ
SLOTS = [NO_ADAPTER, 0, 1, NO_ADAPTER, 2, 1, 3, 0, 1]
WAYS: dict[str, dict[str, Any]] = {
    "chunked": {"max_num_batched_tokens": 23},
    "preempted": {"num_blocks": 7},
    "speculating": {"speculation": True},
}
DEVICE = {"dtype": "f32", "cache_mb": 1, "deterministic": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "small-llama")


@pytest.fixture(scope="module")
def device(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuRuntime]:
    folder = tmp_path_factory.mktemp("device")
    runtime = with_adapters(start_gpu_runtime_on_cpu(base, settings("m", **DEVICE)), folder)
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def right(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the CPU's reference answers."""
    runtime = start(base, kernels="reference", dtype="f32")
    with_adapters(runtime, tmp_path_factory.mktemp("reference"))
    outcome = generate(runtime, scheduler_of(runtime), requests(), OWN_SLOTS)
    runtime.close()
    return outcome


def requests() -> list[Request]:
    """Interpreted, a step takes half a second: a few short ones."""
    asked = requests_over(VOCAB, 12 if INTERPRETED else 36)
    most = 3 if INTERPRETED else 8
    shorter = [replace(one, max_tokens=min(one.max_tokens, most)) for one in asked]
    return [shorter[index] for index in (2, 3, 5)] if INTERPRETED else shorter


OWN_SLOTS = [1, NO_ADAPTER, 2] if INTERPRETED else SLOTS


def assert_near(outcome: Outcome, right: Outcome, within: float = 1e-3) -> None:
    for answer, expected in zip(outcome.answers, right.answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in expected]
        logprobs = [logprob for _, logprob, _ in expected]
        assert [logprob for _, logprob, _ in answer] == pytest.approx(logprobs, abs=within)


@pytest.fixture(scope="module")
def together(device: GpuRuntime) -> Outcome:
    """What all requests get in one batch."""
    return generate(device, scheduler_of(device), requests(), OWN_SLOTS)


@pytest.fixture(scope="module")
def alone(device: GpuRuntime) -> Outcome:
    """What each request gets after the other."""
    outcome = Outcome([], [], 0)
    for request, slot in zip(requests(), OWN_SLOTS, strict=True):
        outcome.answers += generate(device, scheduler_of(device), [request], [slot]).answers
    return outcome


def test_a_mix_of_adapters_answers_as_the_reference_runtime(
    together: Outcome, right: Outcome
) -> None:
    assert_near(together, right)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes its time")
@pytest.mark.parametrize("way", WAYS)
def test_a_mix_of_adapters_answers_so_in_any_way(
    device: GpuRuntime, right: Outcome, way: str
) -> None:
    assert_near(generate(device, scheduler_of(device, **WAYS[way]), requests(), OWN_SLOTS), right)


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_adapters_on_integers_answer_as_on_the_reference_runtime(tmp_path: Path) -> None:
    """Activations are rounded to 8 bits: what is near may fall on either side."""
    path, _ = write_quantized(tmp_path, "Q4_1")
    device = start_gpu_runtime_on_cpu(path, settings("m", cache_mb=1))
    outcomes = [
        generate(with_adapters(one, tmp_path), scheduler_of(one), requests()[2:6], SLOTS[2:6])
        for one in (device, start(path, kernels="reference"))
    ]
    assert_near(*outcomes, within=0.1)


def test_a_mix_of_adapters_answers_as_each_request_alone(together: Outcome, alone: Outcome) -> None:
    """But for rounding: products on a CPU, torch's and numpy's with which Triton interprets, round
    by the place of a row. That the bits are the same a GPU is to show (`test_gpu_extras`)."""
    assert_near(together, alone, within=2e-5)


@pytest.mark.usefixtures("alone")
def test_graphs_are_captured_without_adapters_and_with(device: GpuRuntime) -> None:
    forms = {(size, form.adapted) for size, form in device.captured if form.samples}
    assert {(1, False), (1, True)} <= forms


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_an_adapter_gives_the_answers_of_merged_weights(base: Path, tmp_path: Path) -> None:
    device = with_adapters(start_gpu_runtime_on_cpu(base, settings("m", **DEVICE)), tmp_path)
    bare = start_gpu_runtime_on_cpu(base, settings("m", **DEVICE | {"lora": None}))
    assert bare.adapters is None
    asked = requests()[2:5]
    plain = generate(bare, scheduler_of(bare), asked)
    assert generate(device, scheduler_of(device), asked).answers == plain.answers
    for slot, adapter in enumerate(draw_adapters(tmp_path)):
        merged = start_gpu_runtime_on_cpu(
            write_merged(base, adapter, tmp_path / f"merged-{slot}"),
            settings("m", **DEVICE | {"lora": None}),
        )
        truth = generate(merged, scheduler_of(merged), asked)
        assert_near(generate(device, scheduler_of(device), asked, [slot] * 3), truth)
        assert truth.answers != plain.answers, "the adapter must matter"


def test_adapters_are_in_the_memory_formula(base: Path) -> None:
    assert "adapters + " in start_gpu_runtime_on_cpu(base, settings("m", **DEVICE)).report
    assert (
        "adapters"
        not in start_gpu_runtime_on_cpu(base, settings("m", **DEVICE | {"lora": None})).report
    )
    runtime = start_gpu_runtime_on_cpu(base, settings("m", **DEVICE))
    assert runtime.adapters is not None
    assert runtime.adapters.capacity == 2 * LORA.max_adapters


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_so_do_the_triton_kernels() -> None:
    passes_interpreted(__file__)
