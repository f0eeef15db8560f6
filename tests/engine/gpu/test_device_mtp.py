"""The GPU runtime, run on CPU tensors, drafts with an MTP head: drafts change no answer, right ones
are accepted, and rejected ones leave neither keys nor recurrent states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gpu_runtime_on_cpu import FREE_BYTES, gpu_ops_on_cpu, start_gpu_runtime_on_cpu
from scheduled_requests import Outcome, Request, generate, requests_over, scheduler_of
from test_device_layers import assert_same, poison

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.decoder.mtp_weights import MtpWeights
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime import start_runtime
from penstock.runtime.drafts.load import refuse_drafter_on_gpus
from penstock.runtime.drafts.mtp import OpenedMtp
from penstock.runtime.gpu.drafters import size_drafter
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.scheduler import Scheduler
from tests.support.checkpoints.layered_models import layered_model
from tests.support.checkpoints.small_mtp import add_mtp_head, correct_mtp_head
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

ROWS, CONTEXT, VOCAB = 6, 256, 96
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 21},
    "preempted": {"num_blocks": 8, "max_num_batched_tokens": 50},
    "without a prefix cache": {"prefix_caching": False},
}
SKIPPED = pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")
FREE, GREEDY = Sampling(temperature=1.0), Sampling(temperature=0.0)
NARROW = Sampling(temperature=0.9, top_k=30, top_p=0.95, min_p=0.01)


def settings(**options: Any) -> EngineSettings:
    return EngineSettings(
        **{
            "dtype": "f32",
            "max_model_len": CONTEXT,
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": CONTEXT,
            "block_size": 16,
            "kv_cache_memory_mb": 1,
            "speculative_algorithm": "mtp",
        }
        | options
    )


def write_wrong(name: str, folder: Path) -> Path:
    """Write a small model of `layered_models` with a random head."""
    layered_model(name).save_pretrained(folder)
    return add_mtp_head(folder)


def write_right(name: str, folder: Path) -> Path:
    """Write a small model of `layered_models` with a head that is always right."""
    return correct_mtp_head(write_wrong(name, folder))


NAMES = ["qwen3.5", "deepseek-v3"]
"""A model with recurrent states, and one with latents and experts."""


@dataclass(frozen=True)
class Saved:
    folder: Path
    device: GpuRuntime


def started(folder: Path) -> Iterator[Saved]:
    runtime = start_gpu_runtime_on_cpu(folder, settings())
    yield Saved(folder, runtime)
    runtime.close()


@pytest.fixture(scope="module", params=NAMES)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Saved]:
    """A model whose head is mostly wrong."""
    yield from started(write_wrong(request.param, tmp_path_factory.mktemp("wrong")))


@pytest.fixture(scope="module", params=NAMES)
def right(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Saved]:
    """A model whose head is always right."""
    yield from started(write_right(request.param, tmp_path_factory.mktemp("right")))


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """In the interpreter a step takes a second, so requests are few and short."""
    if INTERPRETED:
        return [replace(one, max_tokens=4) for one in requests_over(VOCAB, 24)[2:4]]
    return [replace(one, max_tokens=min(one.max_tokens, 30)) for one in requests_over(VOCAB, 70)]


@pytest.fixture(scope="module")
def expected(saved: Saved, requests: list[Request]) -> Outcome:
    plain = settings(kernel_backend="reference", speculative_algorithm="none")
    runtime = start_runtime(files_at(saved.folder, "m"), plain)
    outcome = generate(runtime, scheduler_of(runtime), requests)  # type: ignore[arg-type]
    runtime.close()
    return outcome


def drafting(runtime: GpuRuntime, **options: Any) -> Scheduler:
    """Return a scheduler in whose steps a token costs little, so that drafts pay."""
    asked = {"speculation": True, "drafter": "mtp", "max_drafts": 4}
    scheduler = scheduler_of(runtime, **(asked | options))
    for tokens in (1, 100):
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    return scheduler


def poison_all(runtime: GpuRuntime) -> None:
    """NaN in all caches and states, those of the head included."""
    poison(runtime)
    assert runtime.placed_drafter is not None
    runtime.placed_drafter.pools.fill(torch.nan)


# Slow: the preempted way is chunked and has a prefix cache, too.
@pytest.mark.parametrize(
    "way",
    [way if way == "preempted" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS],
)
def test_drafts_change_no_answer(
    saved: Saved, expected: Outcome, requests: list[Request], way: str
) -> None:
    if INTERPRETED and way != "batched":
        pytest.skip("the interpreter takes its time")
    poison_all(saved.device)
    scheduler = drafting(saved.device, **WAYS[way])
    for _ in range(1 if INTERPRETED else 2):  # the second time from the cache of the first
        assert_same(generate(saved.device, scheduler, requests), expected)  # type: ignore[arg-type]
    gauges = scheduler.gauges()
    assert gauges.mtp_draft_tokens > 0
    assert (gauges.preemptions > 0) == (way == "preempted")
    if not INTERPRETED:
        assert gauges.mtp_draft_tokens > gauges.mtp_accepted_tokens


@pytest.mark.parametrize("sampling", [GREEDY, FREE, NARROW], ids=["greedy", "free", "narrow"])
@SKIPPED
def test_right_drafts_are_accepted(right: Saved, sampling: Sampling) -> None:
    """At any temperature: a draft token is sampled with the random numbers of the model's token."""
    requests = [Request((*range(40), token), 40, sampling, seed=token) for token in (3, 11, 90)]
    poison_all(right.device)
    plain = scheduler_of(right.device, drafter=None)
    expected = generate(right.device, plain, requests).answers  # type: ignore[arg-type]
    scheduler = drafting(right.device, max_num_batched_tokens=50)
    poison_all(right.device)
    for _ in range(2):  # the second time with a cached prefix
        answers = generate(right.device, scheduler, requests).answers  # type: ignore[arg-type]
        assert [[token for token, *_ in one] for one in answers] == [
            [token for token, *_ in one] for one in expected
        ]
    gauges = scheduler.gauges()
    assert gauges.mtp_draft_tokens > 60
    assert gauges.mtp_accepted_tokens > 0.9 * gauges.mtp_draft_tokens


@SKIPPED
def test_an_engine_drafts_and_never_plans_ahead(right: Saved) -> None:
    """A drafter needs the tokens of a step before the next one is planned."""
    assert not right.device.info.overlaps
    asked = settings()
    found = []
    for runtime, own in (
        (start_gpu_runtime_on_cpu(right.folder, asked), asked),
        (
            start_gpu_runtime_on_cpu(right.folder, settings(speculative_algorithm="none")),
            settings(speculative_algorithm="none"),
        ),
    ):
        core = EngineCore.for_runtime(runtime, own)
        for row in range(3):
            core.submit(TokenRequest(str(row), tuple(range(9 + row)), FREE, row, 60))
        tokens: dict[str, list[int]] = {}
        while core.has_work:
            for chunk in core.step():
                tokens.setdefault(chunk.id, []).extend(one.token_id for one in chunk.tokens)
        gauges = core.gauges()
        assert (gauges.mtp_draft_tokens > 0) == (gauges.draft_seconds > 0) == (own is asked)
        found.append(tokens)
        core.close()
    assert found[0] == found[1]
    assert len(found[0]["0"]) == 60


@SKIPPED
def test_short_passes_of_the_head_are_replays(right: Saved) -> None:
    head = right.device.placed_drafter
    assert head is not None
    requests = [Request(tuple(range(60)), 30, GREEDY)]
    generate(right.device, drafting(right.device), requests)  # type: ignore[arg-type]
    sizes = {size for size, _ in head.steps.captured}
    assert {1, 2, HEAD_TOKENS} <= sizes and max(sizes) == HEAD_TOKENS
    while right.device.prepare():
        pass
    assert {(size, samples) for size in (1, 2, 4, 8, 12, 16) for samples in (False, True)} == set(
        head.steps.captured
    )


@SKIPPED
def test_the_head_is_in_the_memory_formula(saved: Saved) -> None:
    asked = settings()
    model = load_model(files_at(saved.folder, "m"), "f32", mtp="required")
    assert isinstance(model.mtp, MtpWeights)
    sized = size_drafter(OpenedMtp(model.spec, model.mtp), asked, gpu_ops_on_cpu(asked))
    plan = plan_device_memory(model.spec, 1 << 20, asked, FREE_BYTES, sized)
    without = plan_device_memory(model.spec, 1 << 20, asked, FREE_BYTES)
    assert plan.cache == without.cache
    assert plan.total_bytes - without.total_bytes == plan.drafter.size_bytes > 0
    head = saved.device.placed_drafter
    assert head is not None and head.pools.size_bytes == plan.drafter.cache_bytes
    steps = head.steps
    assert steps._states is not None
    assert steps._sent._transfers.words.nbytes + steps._states.nbytes < plan.drafter.buffer_bytes
    assert f"{plan.drafter.terms()}" in plan.formula() and "cache of drafter" in plan.formula()
    free = settings(kv_cache_memory_mb=None)
    shared = plan_device_memory(model.spec, 1 << 20, free, FREE_BYTES, sized)
    alone = plan_device_memory(model.spec, 1 << 20, free, FREE_BYTES)
    assert shared.cache.blocks < alone.cache.blocks
    assert shared.total_bytes <= 0.92 * FREE_BYTES


@SKIPPED
def test_restored_blocks_have_the_keys_of_the_head(tmp_path: Path) -> None:
    runtime = start_gpu_runtime_on_cpu(
        write_right("deepseek-v3", tmp_path), settings(cpu_kv_cache_memory_mb=1)
    )
    first, second = (
        [Request(tuple((place * by) % VOCAB for place in range(100)), 20, GREEDY)] for by in (5, 7)
    )
    expected = generate(runtime, scheduler_of(runtime), first).answers  # type: ignore[arg-type]
    tight = drafting(runtime, num_blocks=9)
    poison_all(runtime)
    for asked in (first, second):
        generate(runtime, tight, asked)  # type: ignore[arg-type]
    before = tight.gauges()
    answers = generate(runtime, tight, first).answers  # type: ignore[arg-type]
    gauges = tight.gauges()
    assert gauges.host_cache_restores > 0
    drafted = gauges.mtp_draft_tokens - before.mtp_draft_tokens
    accepted = gauges.mtp_accepted_tokens - before.mtp_accepted_tokens
    assert [[one[0] for one in answer] for answer in answers] == [
        [one[0] for one in answer] for answer in expected
    ]
    assert drafted > 0 and accepted > 0.9 * drafted  # NaN keys would give no drafts
    runtime.close()


def test_drafters_on_several_gpus_are_refused_by_name() -> None:
    refuse_drafter_on_gpus(settings())
    two = settings(tensor_parallel_size=2)
    with pytest.raises(ModelError, match="mtp and tensor_parallel_size 2; an MTP head runs on"):
        refuse_drafter_on_gpus(two)
    drafting = msgspec.structs.replace(two, speculative_algorithm="none", draft_model="x")
    with pytest.raises(ModelError, match="draft_model is set and tensor_parallel_size is 2; a dr"):
        refuse_drafter_on_gpus(drafting)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_triton_kernels_answer_alike_in_the_interpreter() -> None:
    passes_interpreted(__file__)
