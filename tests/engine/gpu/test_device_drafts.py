"""The GPU runtime, run on CPU tensors, drafts with a smaller model: drafts change no answer, and
those of an equal model are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_runtime_on_cpu import FREE_BYTES, gpu_ops_on_cpu, start_gpu_runtime_on_cpu
from scheduled_requests import Outcome, Request, generate, requests_over, scheduler_of
from test_device_layers import assert_same, poison
from test_device_mtp import FREE, GREEDY, NARROW, drafting, poison_all, settings

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime import start_runtime
from penstock.runtime.drafts.load import open_drafter
from penstock.runtime.gpu.drafters import size_drafter
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from tests.support.assistant_models import assisted_model
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "preempted": {"num_blocks": 8, "max_num_batched_tokens": 50},
}
SKIPPED = pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")


def with_draft_model(folder: Path, **options: Any) -> EngineSettings:
    return settings(speculative_algorithm="none", draft_model=str(folder), **options)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("other") / "other", seed=1)


@pytest.fixture(scope="module")
def unlike(base: Path, other: Path) -> Iterator[GpuRuntime]:
    """A model with a draft model that is mostly wrong."""
    runtime = start_gpu_runtime_on_cpu(base, with_draft_model(other))
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def equal(base: Path) -> Iterator[GpuRuntime]:
    """A model that is its own draft model."""
    runtime = start_gpu_runtime_on_cpu(base, with_draft_model(base))
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """In the interpreter a step takes a second, so there are few."""
    asked = requests_over(VOCAB, 24 if INTERPRETED else 70)
    count = 4 if INTERPRETED else 24
    return [
        Request(one.prompt, min(one.max_tokens, count), one.sampling, one.seed)
        for one in (asked[2:4] if INTERPRETED else asked)
    ]


@pytest.fixture(scope="module")
def expected(base: Path, requests: list[Request]) -> Outcome:
    plain = settings(kernel_backend="reference", speculative_algorithm="none")
    runtime = start_runtime(files_at(base, "m"), plain)
    outcome = generate(runtime, scheduler_of(runtime), requests)  # type: ignore[arg-type]
    runtime.close()
    return outcome


@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_answer(
    unlike: GpuRuntime, expected: Outcome, requests: list[Request], way: str
) -> None:
    if INTERPRETED and way != "batched":
        pytest.skip("the interpreter takes its time")
    poison_all(unlike)
    scheduler = drafting(unlike, drafter="draft_model", **WAYS[way])
    for _ in range(1 if INTERPRETED else 2):  # the second time from the cache of the first
        assert_same(generate(unlike, scheduler, requests), expected)  # type: ignore[arg-type]
    gauges = scheduler.gauges()
    assert gauges.draft_model_draft_tokens > gauges.draft_model_accepted_tokens
    assert (gauges.preemptions > 0) == (way == "preempted")


@pytest.mark.parametrize("sampling", [GREEDY, FREE, NARROW], ids=["greedy", "free", "narrow"])
@SKIPPED
def test_drafts_of_an_equal_model_are_accepted(equal: GpuRuntime, sampling: Any) -> None:
    requests = [Request((*range(40), token), 40, sampling, seed=token) for token in (3, 11, 90)]
    poison(equal)
    plain = scheduler_of(equal, drafter=None)
    answers = generate(equal, plain, requests).answers  # type: ignore[arg-type]
    poison_all(equal)
    scheduler = drafting(equal, drafter="draft_model", max_num_batched_tokens=50)
    for _ in range(2):  # the second time with a cached prefix
        found = generate(equal, scheduler, requests).answers  # type: ignore[arg-type]
        assert [[token for token, *_ in one] for one in found] == [
            [token for token, *_ in one] for one in answers
        ]
    gauges = scheduler.gauges()
    assert gauges.draft_model_draft_tokens > 60
    assert gauges.draft_model_accepted_tokens > 0.9 * gauges.draft_model_draft_tokens


@SKIPPED
def test_the_draft_model_is_in_the_memory_formula(base: Path, unlike: GpuRuntime) -> None:
    placed = unlike.placed_drafter
    assert placed is not None and unlike.info.drafter == placed.source == "draft_model"
    assert "weights of drafter" in unlike.report
    assert not unlike.info.overlaps
    asked = with_draft_model(base)
    model = load_model(files_at(base, "m"), "f32")
    drafts = open_drafter(files_at(base, "m"), model, asked, None, "float8")
    ops = gpu_ops_on_cpu(asked)
    plan = plan_device_memory(
        model.spec, 1 << 20, asked, FREE_BYTES, size_drafter(drafts, asked, ops)
    )
    assert placed.pools.size_bytes == plan.drafter.cache_bytes == plan.cache.size_bytes
    assert plan.drafter.weight_bytes == model.weights.packed_bytes(ops.packed_bytes)
    assert plan.drafter.buffer_bytes > placed.steps._sent._transfers.words.nbytes


@SKIPPED
def test_an_assistant_is_refused_by_name(tmp_path: Path) -> None:
    target, assistant = assisted_model("31b").save(tmp_path)
    with pytest.raises(ModelError, match="draft_model is an assistant; an assistant runs only"):
        start_gpu_runtime_on_cpu(target, with_draft_model(assistant))


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_triton_kernels_answer_alike_in_the_interpreter() -> None:
    passes_interpreted(__file__)


def test_poison_reaches_the_cache_of_the_draft_model(unlike: GpuRuntime) -> None:
    poison_all(unlike)
    assert unlike.placed_drafter is not None
    (cache, *_) = unlike.placed_drafter.pools.present
    assert torch.isnan(cache.keys).all()
