"""The runtime of a GPU, rehearsed on CPU tensors, answers as the CPU's reference does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from device_runtimes import rehearse
from generations import Outcome, Request, generate, requests_over
from interpreting import INTERPRETED, passes_interpreted
from small_experts import write_small_experts
from small_gpt_oss import gpt_oss_tensors, write_small_gpt_oss
from small_llama import CONTEXT, VOCAB, write_small_llama

from penstock.config import EngineSettings
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.sources import files_at
from penstock.runtime import start_runtime
from penstock.runtime.gpu import FREE, GpuRuntime
from penstock.scheduler import Scheduler

T = TypeVar("T")
BLOCK, ROWS = 16, 6
WAYS = {
    "batched": {},
    "chunked": {"token_budget": 23},
    "preempted": {"num_blocks": 7},
    "speculating": {"speculation": True},
}


def settings(**options: object) -> EngineSettings:
    return EngineSettings(
        dtype="f32",
        context_tokens=CONTEXT,
        max_seqs=ROWS,
        token_budget=CONTEXT,
        block_tokens=BLOCK,
        cache_mb=1,
        **options,  # type: ignore[arg-type]
    )


WRITERS = {
    "llama": write_small_llama,
    "experts": write_small_experts,
    "gpt-oss": lambda folder: write_small_gpt_oss(
        folder, tensors=gpt_oss_tensors(layers=2), num_hidden_layers=2, layer_types=None
    ),
}


@pytest.fixture(scope="module", params=list(WRITERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="module")
def device(folder: Path) -> Iterator[GpuRuntime]:
    runtime = rehearse(folder, settings())
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Interpreted, a step takes half a second: a few short ones."""
    asked = requests_over(VOCAB, 12 if INTERPRETED else 60)
    most = 4 if INTERPRETED else 30
    shorter = [replace(one, max_tokens=min(one.max_tokens, most)) for one in asked]
    return shorter[2:4] if INTERPRETED else shorter


@pytest.fixture(scope="module")
def right(folder: Path, requests: list[Request]) -> Outcome:
    runtime = start_runtime(files_at(folder, "m"), settings(kernels="reference"))
    outcome = generate(runtime, scheduler(num_blocks=runtime.info.cache_blocks), requests)
    runtime.close()
    return outcome


def scheduler(**options: int | bool) -> Scheduler:
    sizes: dict[str, int | bool] = {
        "block_tokens": BLOCK,
        "context_tokens": CONTEXT,
        "max_seqs": ROWS,
        "token_budget": CONTEXT,
    }
    return Scheduler(**(sizes | options))  # type: ignore[arg-type]


def assert_same(answers: Outcome, right: Outcome) -> None:
    for answer, expected in zip(answers.answers, right.answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in expected]
        logprobs = [logprob for _, logprob, _ in expected]
        assert [logprob for _, logprob, _ in answer] == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_it_answers_as_the_reference_runtime(
    device: GpuRuntime, right: Outcome, requests: list[Request], way: str
) -> None:
    if INTERPRETED and way != "batched":
        pytest.skip("the interpreter takes its time")
    blocks = device.info.cache_blocks
    assert_same(
        generate(device, scheduler(**({"num_blocks": blocks} | WAYS[way])), requests), right
    )


class ComputingCapturer:
    """Computes while it captures, as a device does, which must leave no trace."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        compute()
        return compute


def test_an_idle_runtime_captures_what_steps_may_want(
    folder: Path, right: Outcome, requests: list[Request]
) -> None:
    if INTERPRETED:
        pytest.skip("the interpreter takes its time")
    runtime = rehearse(folder, settings())
    runtime._graphs._capturer = ComputingCapturer()
    assert not runtime.prepare()  # nothing was wanted yet
    runtime.warm(1)
    blocks = runtime.info.cache_blocks
    generate(runtime, scheduler(num_blocks=blocks), requests[:1])
    while runtime.prepare():
        pass
    assert_same(generate(runtime, scheduler(num_blocks=blocks), requests), right)
    for size in (1, 2, 4, 8):
        assert (size, FREE) in runtime.captured
    runtime.close()


def test_steps_of_decodes_are_replayed_at_sizes_that_hold_them(device: GpuRuntime) -> None:
    assert not any(form.adapted for _, form in device.captured)
    sizes = {size for size, form in device.captured if form.draws}
    assert 8 in sizes, "the largest is captured first"
    assert sizes <= {1, 2, 4, 8}


def chunks_of(core: EngineCore, requests: list[Request]) -> dict[str, list[tuple[object, ...]]]:
    """The tokens of every request with their log-probabilities, through the engine's loop."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for index, request in enumerate(requests):
        found[str(index)] = []
        core.submit(
            TokenRequest(
                id=str(index),
                token_ids=request.prompt,
                sampling=request.sampling,
                seed=request.seed,
                max_tokens=request.max_tokens,
                top_logprobs=2 if index % 2 else None,
                stop_token_ids=frozenset(range(10)),
            )
        )
    while core.has_work:
        for chunk in core.step():
            found[chunk.id] += [(t.token_id, t.logprob is None) for t in chunk.tokens]
            if chunk.finish is not None:
                found[chunk.id].append((chunk.finish,))
    return found


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_computing_ahead_changes_no_answer(folder: Path, requests: list[Request]) -> None:
    answers = []
    for runtime in (
        rehearse(folder, settings()),
        start_runtime(files_at(folder, "m"), settings(kernels="reference")),
    ):
        core = EngineCore.over(runtime, settings())
        answers.append(chunks_of(core, requests))
        assert core.gauges().kv_cache_blocks_used == 0
        core.close()
    assert answers[0] == answers[1]
    assert any(answer[-1] == ("stop",) for answer in answers[0].values())


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_an_engine_has_as_many_rows_as_memory_was_planned_for(folder: Path) -> None:
    asked = EngineSettings(dtype="f32", context_tokens=CONTEXT, cache_mb=1)
    for runtime, rows in (
        (rehearse(folder, asked), 256),
        (start_runtime(files_at(folder, "m"), asked), 32),
    ):
        core = EngineCore.over(runtime, asked)
        assert core.info.max_seqs == core.gauges().sequences_capacity == rows
        core.close()


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_so_do_the_triton_kernels() -> None:
    passes_interpreted(__file__)
