"""The GPU runtime, run on CPU tensors, serves models whose layers differ: with recurrent states,
with latents, with KV caches of several sizes. It answers as the CPU's reference and transformers
do, however the answers are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from scheduled_requests import Outcome, Request, generate, requests_over, scheduler_of

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime import start_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from tests.support.checkpoints.layered_models import MODELS, VOCAB, layered_model
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

ROWS, CONTEXT = 6, 256
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "preempted and chunked": {"num_blocks": 8, "max_num_batched_tokens": 23},
    "with drafts": {"speculation": True},
    "without a prefix cache": {"prefix_caching": False},
}
NAMES = ["qwen3.5", "deepseek-v3"] if INTERPRETED else list(MODELS)
SKIPPED = pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")


def settings(**options: object) -> EngineSettings:
    return EngineSettings(
        dtype="f32",
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=CONTEXT,
        block_size=16,
        kv_cache_memory_mb=1,
        **({"speculative_algorithm": "ngram"} | options),  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Saved:
    """A model of transformers, its folder, and its runtime on a device."""

    model: Any
    folder: Path
    device: GpuRuntime


@pytest.fixture(scope="module", params=NAMES)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Saved]:
    folder = tmp_path_factory.mktemp(request.param)
    model = layered_model(request.param)
    model.save_pretrained(folder)
    runtime = start_gpu_runtime_on_cpu(folder, settings())
    yield Saved(model, folder, runtime)
    runtime.close()


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """In the interpreter a step takes a second, so requests are few and short."""
    if INTERPRETED:
        asked = requests_over(VOCAB, 24)[2:4]
        return [replace(one, max_tokens=3) for one in asked]
    asked = [replace(one, max_tokens=min(one.max_tokens, 30)) for one in requests_over(VOCAB, 70)]
    # Draws between two tokens, so that drafts are proposed, accepted and rejected.
    pairs = Sampling(temperature=1.0, logit_bias={3: 50.0, 5: 50.0})
    return [*asked, Request(tuple(range(20)), 40, pairs)]


@pytest.fixture(scope="module")
def right(saved: Saved, requests: list[Request]) -> Outcome:
    runtime = start_runtime(files_at(saved.folder, "m"), settings(kernel_backend="reference"))
    outcome = generate(runtime, scheduler_of(runtime), requests)  # type: ignore[arg-type]
    runtime.close()
    return outcome


def poison(runtime: GpuRuntime) -> None:
    """NaN in all caches and states: whatever is read before it is written shows."""
    runtime._model.pools.fill(torch.nan)
    states = [state for state in runtime._model._states if state is not None]
    for part in (part for one in states for part in (one.conv, one.matrix) if part is not None):
        for field in fields(part):
            getattr(part, field.name).fill_(torch.nan)


def assert_same(answers: Outcome, right: Outcome) -> None:
    for answer, expected in zip(answers.answers, right.answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in expected]
        logprobs = [logprob for _, logprob, _ in expected]
        assert [logprob for _, logprob, _ in answer] == pytest.approx(logprobs, abs=1e-3)


# Slow: the other ways are chunked and have a prefix cache, too.
SLOW_WAYS = ("chunked", "without a prefix cache")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow) if way in SLOW_WAYS else way for way in WAYS]
)
def test_answers_equal_those_of_the_reference_runtime(
    saved: Saved, right: Outcome, requests: list[Request], way: str
) -> None:
    if INTERPRETED and way not in ("batched", "chunked"):
        pytest.skip("the interpreter takes its time")
    poison(saved.device)
    scheduler = scheduler_of(saved.device, **WAYS[way])
    for tokens in (1, 100):  # a token costs little, so that drafts pay
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    for _ in range(1 if INTERPRETED else 2):  # the second time from the cache of the first
        assert_same(generate(saved.device, scheduler, requests), right)
    gauges = scheduler.gauges()
    if INTERPRETED:
        return
    assert (gauges.preemptions > 0) == (way == "preempted and chunked")
    assert (gauges.accepted_tokens > 0) == (way == "with drafts")
    if saved.folder.name.startswith("qwen3.5"):  # the draws of others may accept every draft
        assert (gauges.draft_tokens > gauges.accepted_tokens) == (way == "with drafts")
    recurrent = saved.device.info.state_snapshots is not None
    cached = way != "without a prefix cache"
    assert (gauges.state_snapshot_restores > 0) == (recurrent and cached)


def test_answers_are_those_of_transformers_up_to_ties(saved: Saved) -> None:
    prompt = tuple((7 * place * place + 3) % VOCAB for place in range(37))
    count = 3 if INTERPRETED else 30
    poison(saved.device)
    greedy = Request(prompt, count, Sampling(temperature=0.0))
    (answer,) = generate(saved.device, scheduler_of(saved.device), [greedy]).answers
    tokens = [token for token, _, _ in answer]
    with torch.no_grad():
        logits = saved.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    shares = logits.log_softmax(-1)
    chosen = shares.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (shares.max(dim=-1).values - chosen).max() < 1e-3
    assert [logprob for _, logprob, _ in answer] == pytest.approx(chosen.tolist(), abs=1e-3)


@pytest.mark.slow
@SKIPPED
def test_planning_ahead_changes_no_answer(saved: Saved, requests: list[Request]) -> None:
    """With arrivals between steps, prompts that share a prefix, and answers that end early."""
    plain = settings(speculative_algorithm="none")  # drafts are never planned ahead
    found = []
    for runtime in (
        start_gpu_runtime_on_cpu(saved.folder, plain),
        start_runtime(
            files_at(saved.folder, "m"), msgspec.structs.replace(plain, kernel_backend="reference")
        ),
    ):
        core = EngineCore.for_runtime(runtime, plain)
        found.append(answers_of(core, requests * 2))
        gauges = core.gauges()
        assert gauges.kv_cache_blocks_used == 0
        if runtime.info.state_snapshots is not None:
            assert gauges.state_snapshot_restores > 0
        core.close()
    assert found[0] == found[1]


def answers_of(core: EngineCore, requests: list[Request]) -> dict[str, list[object]]:
    """Return the tokens of every request. One request arrives every third step."""
    found: dict[str, list[object]] = {}
    steps = 0
    while core.has_work or len(found) < len(requests):
        while len(found) < len(requests) and steps >= 3 * len(found):
            request, id = requests[len(found)], str(len(found))
            found[id] = []
            core.submit(
                TokenRequest(
                    id=id,
                    token_ids=request.prompt,
                    sampling=request.sampling,
                    seed=request.seed,
                    max_tokens=request.max_tokens,
                    stop_token_ids=frozenset(range(10, 18)),
                )
            )
        steps += 1
        for chunk in core.step():
            found[chunk.id] += [token.token_id for token in chunk.tokens]
            if chunk.finish is not None:
                found[chunk.id].append(chunk.finish)
    return found


@SKIPPED
def test_device_memory_is_that_of_the_formula(saved: Saved) -> None:
    spec = load_model(files_at(saved.folder, "m"), "f32").spec
    plan = plan_device_memory(spec, 1 << 20, settings(), 1 << 30)
    assert saved.device._model.pools.size_bytes == plan.cache.size_bytes
    states = [state for state in saved.device._model._states if state is not None]
    parts = [part for one in states for part in (one.conv, one.matrix) if part is not None]
    arrays = [getattr(part, field.name) for part in parts for field in fields(part)]
    assert sum(array.nbytes for array in arrays) == plan.terms()["states"]
    assert bool(states) == ("recurrent states (7 sequences x" in plan.formula())


@SKIPPED
def test_an_8_bit_cache_of_latents_is_refused_by_name(saved: Saved) -> None:
    spec = load_model(files_at(saved.folder, "m"), "f32").spec
    narrow = settings(kv_cache_dtype="f8e4m3")
    if any(size is not None and size.latent for size in spec.caches):
        with pytest.raises(ModelError, match="kv_cache_dtype is f8e4m3; for a model with latent"):
            plan_device_memory(spec, 1 << 20, narrow, 1 << 30)
    else:
        plan_device_memory(spec, 1 << 20, narrow, 1 << 30)


@SKIPPED
def test_blocks_of_every_size_are_restored_from_the_cpu_kv_cache(saved: Saved) -> None:
    options: dict[str, Any] = {"cpu_kv_cache_memory_mb": 1}
    if saved.device.info.state_snapshots is not None:
        with pytest.raises(ModelError, match="cpu_kv_cache_memory_mb is 1; for a model with"):
            start_gpu_runtime_on_cpu(saved.folder, settings(**options))
        return
    runtime = start_gpu_runtime_on_cpu(saved.folder, settings(**options))
    first, second = (
        [
            Request(
                tuple((place * number) % VOCAB for place in range(100)), 4, Sampling(temperature=0)
            )
        ]
        for number in (5, 7)
    )
    right = generate(runtime, scheduler_of(runtime), first)  # type: ignore[arg-type]
    poison(runtime)
    tight = scheduler_of(runtime, num_blocks=8)
    for asked in (first, second):
        generate(runtime, tight, asked)  # type: ignore[arg-type]
    back = generate(runtime, tight, first)  # type: ignore[arg-type]
    assert tight.gauges().host_cache_restores > 0
    assert_same(back, right)
    runtime.close()


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_triton_kernels_answer_alike_in_the_interpreter() -> None:
    passes_interpreted(__file__)
