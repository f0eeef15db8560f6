"""Models whose layers differ, on a GPU: they answer as the CPU's reference, and as themselves
without graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from scheduled_requests import Outcome, Request, generate, requests_over, scheduler_of

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.kernels.triton import TritonOps
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime import start_runtime
from penstock.runtime.gpu.load import build_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from tests.support.checkpoints.layered_models import (
    CONTEXT,
    VOCAB,
    layered_model,
    write_layered_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = 6
NAMES = ("qwen3.5", "lfm2", "granite-hybrid", "falcon-h1", "gemma4", "glm-4.7-flash")
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 23},
    "preempted": {"num_blocks": 8, "max_num_batched_tokens": 50},
    "with drafts": {"speculation": True},
}


def settings(**options: object) -> EngineSettings:
    defaults = {"dtype": "f32", "speculative_algorithm": "ngram"}
    return EngineSettings(
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=CONTEXT,
        block_size=16,
        kv_cache_memory_mb=8,
        **(defaults | options),  # type: ignore[arg-type]
    )


def start(folder: Path, asked: EngineSettings, *, graphs: bool = True) -> GpuRuntime:
    model = load_model(files_at(folder, "m"), asked.dtype)
    memory = plan_device_memory(model.spec, 1 << 20, asked, 8 << 30)
    dtype = torch.float32 if asked.dtype == "f32" else torch.bfloat16
    return build_runtime(model, memory, asked, TritonOps("cuda:0", dtype), graphs=graphs)


@dataclass(frozen=True)
class Served:
    """A model with its folder, and its runtimes with graphs and without."""

    name: str
    folder: Path
    replayed: GpuRuntime
    launched: GpuRuntime


@pytest.fixture(scope="module", params=NAMES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = write_layered_model(request.param, tmp_path_factory.mktemp("model"))
    runtimes = start(folder, settings()), start(folder, settings(), graphs=False)
    yield Served(request.param, folder, *runtimes)
    for runtime in runtimes:
        runtime.close()


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Greedy, because sampling with a temperature may fall on either side of a rounding error."""
    greedy = Sampling(temperature=0.0)
    return [replace(one, sampling=greedy, max_tokens=24) for one in requests_over(VOCAB, 70)]


@pytest.fixture(scope="module")
def right(served: Served, requests: list[Request]) -> Outcome:
    asked = settings(device="cpu", kernel_backend="reference")
    runtime = start_runtime(files_at(served.folder, "m"), asked)
    outcome = generate(runtime, scheduler_of(runtime), requests)  # type: ignore[arg-type]
    runtime.close()
    return outcome


def assert_near(answers: Outcome, right: Outcome) -> None:
    """Tokens are equal up to the first near tie, after which the answers go different ways."""
    for answer, expected in zip(answers.answers, right.answers, strict=True):
        assert len(answer) == len(expected)
        for (token, logprob, _), (wanted, best, others) in zip(answer, expected, strict=True):
            if token != wanted:
                assert best - dict(others).get(token, -100.0) < 5e-3
                break
            assert logprob == pytest.approx(best, abs=5e-3)


@pytest.mark.parametrize("way", WAYS)
def test_float32_answers_equal_those_of_the_reference(
    served: Served, right: Outcome, requests: list[Request], way: str
) -> None:
    scheduler = scheduler_of(served.replayed, **WAYS[way])
    for tokens in (1, 100):  # a token costs little, so that drafts pay
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    for _ in range(2):  # the second time from the cache of the first
        assert_near(generate(served.replayed, scheduler, requests), right)  # type: ignore[arg-type]
    assert (scheduler.gauges().preemptions > 0) == (way == "preempted")


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6])
def test_a_replay_equals_launches_bit_for_bit(
    served: Served, requests: list[Request], rows: int
) -> None:
    asked = [replace(one, sampling=Sampling(temperature=1.0), seed=7) for one in requests[:rows]]
    replayed, launched = (
        generate(runtime, scheduler_of(runtime), asked).answers  # type: ignore[arg-type]
        for runtime in (served.replayed, served.launched)
    )
    assert replayed == launched


def test_planning_ahead_changes_no_answer(served: Served, requests: list[Request]) -> None:
    """In float32, with steps in flight, requests that arrive, and answers that end early."""
    plain = settings(speculative_algorithm="none")
    runtime = start(served.folder, plain)
    overlapping = core_answers(runtime, plain, requests)
    runtime._info = msgspec.structs.replace(runtime.info, overlaps=False)
    assert core_answers(runtime, plain, requests) == overlapping
    runtime.close()


def core_answers(
    runtime: GpuRuntime, asked: EngineSettings, requests: list[Request]
) -> dict[str, list[int]]:
    core = EngineCore.for_runtime(runtime, asked)
    answers: dict[str, list[int]] = {}
    for index, request in enumerate(requests * 2):
        answers[str(index)] = []
        core.submit(
            TokenRequest(
                id=str(index),
                token_ids=request.prompt,
                sampling=request.sampling,
                seed=request.seed,
                max_tokens=request.max_tokens,
                stop_token_ids=frozenset({3, 17}),
            )
        )
    while core.has_work:
        for chunk in core.step():
            answers[chunk.id] += [token.token_id for token in chunk.tokens]
    return answers


def test_bfloat16_answers_score_well_in_float32(served: Served) -> None:
    """Almost every token that bfloat16 chooses is near the best one by the logits of transformers.
    A token whose experts are chosen by a rounding error may not be. Some versions of transformers
    disagree with our float32 answers, which other tests compare with the CPU's."""
    if max(distances(served, served.replayed)) > 0.01:
        pytest.skip(f"transformers {version('transformers')} computes other logits in float32")
    narrow = start(served.folder, settings(dtype="auto"))
    below = distances(served, narrow)
    narrow.close()
    assert sum(distance < 0.25 for distance in below) >= 20, below


def distances(served: Served, runtime: GpuRuntime) -> list[float]:
    """Return how far each of 24 greedy tokens is below the best one by the logits of transformers,
    in standard deviations of the logits."""
    prompt = tuple((7 * place * place + 3) % VOCAB for place in range(37))
    greedy = Request(prompt, 24, Sampling(temperature=0.0))
    (answer,) = generate(runtime, scheduler_of(runtime), [greedy]).answers  # type: ignore[arg-type]
    tokens = [token for token, _, _ in answer]
    assert len(tokens) == 24
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *tokens]])
        logits = layered_model(served.name)(ids).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    below: list[float] = ((logits.max(dim=-1).values - chosen) / logits.std(dim=-1)).tolist()
    return below
