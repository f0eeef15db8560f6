"""The runtime of a GPU, rehearsed on CPU tensors, answers as the CPU's reference does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from scheduled_requests import Outcome, Request, generate, requests_over

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.hub.sources import files_at
from penstock.runtime import start_runtime
from penstock.runtime.gpu.runtime import FREE, GpuRuntime
from penstock.runtime.protocol import Masks
from penstock.scheduler import Scheduler, StepPlan, StepResult
from penstock.scheduler.types import Admit, AppendBlocks, Chunk
from tests.support.checkpoints.small_gpt_oss import gpt_oss_tensors, write_small_gpt_oss
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama
from tests.support.checkpoints.small_moe import write_small_experts
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

T = TypeVar("T")
BLOCK, ROWS = 16, 6
WAYS = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 23},
    "preempted": {"num_blocks": 7},
    "speculating": {"speculation": True},
}


def settings(**options: object) -> EngineSettings:
    return EngineSettings(
        dtype="f32",
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=CONTEXT,
        block_size=BLOCK,
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
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what does not depend on the model."""
    return write_small_llama(tmp_path_factory.mktemp("plain") / "small")


@pytest.fixture(scope="module")
def device(folder: Path) -> Iterator[GpuRuntime]:
    runtime = start_gpu_runtime_on_cpu(folder, settings())
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
        "block_size": BLOCK,
        "max_model_len": CONTEXT,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": CONTEXT,
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
    runtime = start_gpu_runtime_on_cpu(folder, settings())
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
    sizes = {size for size, form in device.captured if form.samples}
    assert 8 in sizes, "the largest is captured first"
    assert sizes <= {1, 2, 4, 8}


def chunks_of(
    core: EngineCore, requests: list[Request], every: int = 0
) -> dict[str, list[tuple[object, ...]]]:
    """The tokens of every request with their log-probabilities, through the engine's loop. The
    requests come all at once, or one every so many steps."""
    found: dict[str, list[tuple[object, ...]]] = {}
    steps = 0
    while core.has_work or len(found) < len(requests):
        while len(found) < len(requests) and steps >= every * len(found):
            index = len(found)
            request = requests[index]
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
                    min_tokens=5 * (index % 3),
                )
            )
        steps += 1
        for chunk in core.step():
            found[chunk.id] += [(t.token_id, t.logprob is None) for t in chunk.tokens]
            if chunk.finish is not None:
                found[chunk.id].append((chunk.finish,))
    return found


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_computing_ahead_changes_no_answer(folder: Path, requests: list[Request]) -> None:
    answers = []
    for runtime in (
        start_gpu_runtime_on_cpu(folder, settings()),
        start_runtime(files_at(folder, "m"), settings(kernels="reference")),
    ):
        core = EngineCore.for_runtime(runtime, settings())
        answers.append(chunks_of(core, requests))
        assert core.gauges().kv_cache_blocks_used == 0
        core.close()
    assert answers[0] == answers[1]
    assert any(answer[-1] == ("stop",) for answer in answers[0].values())


class CountingRuntime:
    """Counts the steps that are submitted, and those of them while another is in flight."""

    def __init__(self, own: GpuRuntime) -> None:
        self._own = own
        self._flying = 0
        self.steps = 0
        self.ahead = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        self.steps += 1
        self.ahead += self._flying > 0
        self._flying += 1
        self._own.submit(plan, masks)

    def collect(self) -> StepResult:
        self._flying -= 1
        return self._own.collect()


def admitted(row: int, prompt: tuple[int, ...], sampling: Sampling) -> Admit:
    return Admit(row, prompt, len(prompt), sampling, seed=row, top_logprobs=1)


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_a_step_that_the_host_draws_in_may_follow_one_in_flight(plain: Path) -> None:
    """The host waits for the step before: its draws are for rows that know what that one drew."""
    dry = Sampling(temperature=0.0, dry_multiplier=1.0, dry_base=1.5, dry_allowed_length=1)
    prompts = (tuple(range(9)), (3, 4) * 5)
    chunks = [(Chunk(0, 0, 9, True),), (Chunk(0, 9, 1, True), Chunk(1, 0, 10, True))]
    plans = [
        StepPlan(
            step=row + 1,
            releases=(),
            admissions=(admitted(row, prompts[row], sampling),),
            blocks=(AppendBlocks(row, (row,)),),
            chunks=chunks[row],
        )
        for row, sampling in enumerate((Sampling(temperature=1.0), dry))
    ]
    in_turn, at_once = (
        start_gpu_runtime_on_cpu(plain, settings()),
        start_gpu_runtime_on_cpu(plain, settings()),
    )
    expected = [in_turn.execute(plan) for plan in plans]
    for plan in plans:
        at_once.submit(plan)
    assert [at_once.collect() for _ in plans] == expected
    for runtime in (in_turn, at_once):
        runtime.close()


DRAWS = {
    "free": (
        Sampling(temperature=0.0),
        Sampling(temperature=1.0),
        Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
    ),
    "adjusted": (
        Sampling(temperature=0.0, presence_penalty=0.7, frequency_penalty=0.4),
        Sampling(temperature=0.0, repetition_penalty=1.3),
        Sampling(temperature=1.0, logit_bias={3: 4.0, 5: -100.0, 12: 2.5}),
        Sampling(temperature=0.0),
        Sampling(
            temperature=0.7,
            repetition_penalty=0.8,
            frequency_penalty=-0.3,
            logit_bias={token: token / 50 for token in range(40)},
        ),
    ),
}
DRY = Sampling(temperature=0.0, dry_multiplier=1.5, dry_base=1.4, dry_allowed_length=1)


def asked_for(requests: list[Request], draws: tuple[Sampling, ...]) -> list[Request]:
    return [
        replace(one, sampling=draws[index % len(draws)]) for index, one in enumerate(requests * 2)
    ]


def compare(folder: Path, requests: list[Request], **sizes: int) -> CountingRuntime:
    """The answers of a device to requests that come while others are computed are those of the
    reference. Returns the runtime, which has counted its steps."""
    asked = msgspec.structs.replace(settings(), **sizes)
    reference = msgspec.structs.replace(asked, kernels="reference")
    device = CountingRuntime(start_gpu_runtime_on_cpu(folder, asked))
    answers = []
    for runtime, own in (
        (device, asked),
        (start_runtime(files_at(folder, "m"), reference), reference),
    ):
        core = EngineCore.for_runtime(runtime, own)  # type: ignore[arg-type]
        answers.append(chunks_of(core, requests, every=3))
        assert core.gauges().kv_cache_blocks_used == 0
        core.close()
    assert answers[0] == answers[1]
    return device


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("budget", [CONTEXT, 23])
def test_steps_are_planned_ahead_while_requests_come(
    plain: Path, requests: list[Request], budget: int, draws: str
) -> None:
    device = compare(plain, asked_for(requests, DRAWS[draws]), max_num_batched_tokens=budget)
    assert device.ahead >= 0.8 * device.steps


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_the_device_goes_on_with_what_the_host_has_drawn_and_counted(
    plain: Path, requests: list[Request]
) -> None:
    """One request in which the host must draw, between others in which it need not."""
    asked = asked_for(requests, DRAWS["adjusted"])
    asked[4] = replace(asked[4], sampling=DRY, max_tokens=8)
    device = compare(plain, asked)
    assert 0 < device.ahead < device.steps


@pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
def test_an_engine_has_as_many_rows_as_memory_was_planned_for(plain: Path) -> None:
    asked = EngineSettings(dtype="f32", max_model_len=CONTEXT, cache_mb=1)
    for runtime, rows in (
        (start_gpu_runtime_on_cpu(plain, asked), 256),
        (start_runtime(files_at(plain, "m"), asked), 32),
    ):
        core = EngineCore.for_runtime(runtime, asked)
        assert core.info.max_num_seqs == core.gauges().sequences_capacity == rows
        core.close()


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_so_do_the_triton_kernels() -> None:
    passes_interpreted(__file__)
