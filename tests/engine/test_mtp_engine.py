"""A model with an MTP head behind the engine's parts: drafts change no answer, right drafts are
accepted, and the head's results do not depend on chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import BLOCK, settings, start
from safetensors.numpy import load_file, save_file
from scheduled_requests import (
    Request,
    generate,
    poison,
    poison_caches,
    requests_over,
    scheduler_of,
)

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.kernels.step_inputs import StepInputs
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime import CpuRuntime
from penstock.scheduler import Scheduler
from tests.support.checkpoints.small_hybrid import VOCAB
from tests.support.checkpoints.small_mtp import write_right_mtp, write_small_mtp

WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 21},
    "preempted": {"num_blocks": 12, "max_num_batched_tokens": 50},
    "without a prefix cache": {"prefix_caching": False},
}
FREE, GREEDY = Sampling(temperature=1.0), Sampling(temperature=0.0)
NARROW = Sampling(temperature=0.9, top_k=30, top_p=0.95, min_p=0.01)
TOKEN_BYTES = {"auto": 2 * 2 * 32 * 2, "int8": 2 * 2 * (32 + 4)}
"""Type of the KV cache -> bytes of a token in the cache of the head, which has two KV heads."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_mtp(tmp_path_factory.mktemp("model") / "small-mtp")


@pytest.fixture(scope="module", params=TOKEN_BYTES)
def cache_dtype(request: pytest.FixtureRequest) -> str:
    """The type of the KV caches of the model and of its head."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def runtime(folder: Path, cache_dtype: str) -> Iterator[CpuRuntime]:
    started = start(folder, lora=None, speculative_algorithm="mtp", kv_cache_dtype=cache_dtype)
    yield started
    started.close()


@pytest.fixture(scope="module", params=["native", "reference"])
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = write_right_mtp(tmp_path_factory.mktemp("model") / "right-mtp")
    started = start(base, lora=None, speculative_algorithm="mtp", kernel_backend=request.param)
    yield started
    started.close()


def drafting(runtime: CpuRuntime, **options: Any) -> Scheduler:
    """Return a scheduler in whose steps a token costs little, so that drafts pay."""
    asked = {"speculation": True, "drafter": "mtp", "max_drafts": 4}
    scheduler = scheduler_of(runtime, **(asked | options))
    for tokens in (1, 100):
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    return scheduler


def poison_head(runtime: CpuRuntime) -> None:
    """NaN in the cache of the head: whatever is read before it is written shows."""
    head: Any = runtime._backend.mtp
    poison_caches(head._caches if hasattr(head, "_caches") else head._kv_cache.caches)


@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_answer(runtime: CpuRuntime, way: str) -> None:
    requests = requests_over(VOCAB, 100)
    poison(runtime)
    plain = scheduler_of(runtime, prefix_caching=False)
    expected = generate(runtime, plain, requests).answers
    poison(runtime)
    poison_head(runtime)
    scheduler = drafting(runtime, **WAYS[way])
    for _ in range(2):
        assert generate(runtime, scheduler, requests).answers == expected
    gauges = scheduler.gauges()
    assert gauges.mtp_draft_tokens > 0
    assert (gauges.preemptions > 0) == (way == "preempted")


@pytest.mark.parametrize("sampling", [GREEDY, FREE, NARROW], ids=["greedy", "free", "narrow"])
def test_right_drafts_are_accepted(right: CpuRuntime, sampling: Sampling) -> None:
    """At any temperature: a draft token is sampled with the random numbers of the model's token."""
    requests = [Request((*range(40), token), 40, sampling, seed=token) for token in (3, 11, 90)]
    expected = generate(right, scheduler_of(right), requests).answers
    scheduler = drafting(right, max_num_batched_tokens=50)
    poison_head(right)
    for _ in range(2):  # the second time with a cached prefix
        answers = generate(right, scheduler, requests).answers
        assert [[token for token, *_ in one] for one in answers] == [
            [token for token, *_ in one] for one in expected
        ]
    gauges = scheduler.gauges()
    assert gauges.mtp_draft_tokens > 60
    assert gauges.mtp_accepted_tokens > 0.9 * gauges.mtp_draft_tokens


def test_chunks_change_no_bit_of_the_head(runtime: CpuRuntime) -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCAB, 37).astype(np.int32)
    hidden = random.normal(size=(37, 64)).astype(np.float32)

    def run(ends: list[int]) -> bytes:
        head: Any = runtime._backend.mtp
        found = []
        for begin, end in zip([0, *ends], [*ends, 37], strict=True):
            positions = np.arange(begin, end, dtype=np.int32)
            table = np.array([[4, 1, 6]], np.int32)
            inputs = StepInputs(
                tokens=tokens[begin:end],
                positions=positions,
                slots=table[0, positions // BLOCK] * BLOCK + positions % BLOCK,
                query_starts=np.array([0, end - begin], np.int32),
                context_lens=np.array([end], np.int32),
                block_tables=table,
                sample_rows=np.array([end - begin - 1], np.int32),
            )
            index = np.arange(end - begin, dtype=np.int32)
            logits, states = head.run(inputs, hidden[begin:end], index)
            found.append(states.copy())
        return np.concatenate(found).tobytes() + logits.tobytes()

    whole = run([])
    for ends in ([1, 2, 16, 17], [5], list(range(1, 37))):
        assert run(ends) == whole


def test_the_head_is_in_the_memory_formula(
    folder: Path, runtime: CpuRuntime, cache_dtype: str
) -> None:
    without = start(folder, lora=None, speculative_algorithm="ngram", kv_cache_dtype=cache_dtype)
    with_head, plain = runtime.info.memory_bytes, without.info.memory_bytes
    blocks = runtime.info.cache_blocks
    without.close()
    model = load_model(files_at(folder, "m"), "auto", mtp="required")
    assert model.mtp is not None
    file_bytes = sum(
        values.nbytes
        for name, values in load_file(folder / "model.safetensors").items()
        if name.startswith("mtp.")
    )
    cache = blocks * BLOCK * TOKEN_BYTES[cache_dtype]
    buffer = 4 * 64 * settings("", lora=None).max_num_batched_tokens  # type: ignore[operator]
    assert with_head - plain == file_bytes + cache + buffer
    assert runtime.info.drafter == "mtp"
    assert "cache of drafter" in runtime.report


def test_the_model_loads_without_a_head_unless_it_is_asked_for(
    tmp_path: Path, runtime: CpuRuntime, cache_dtype: str
) -> None:
    write_small_mtp(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {n: v for n, v in load_file(path).items() if not n.startswith("mtp.")}
    save_file(kept, path)
    requests = [replace(one, max_tokens=5) for one in requests_over(VOCAB, 40)[:4]]
    without = start(tmp_path, lora=None, speculative_algorithm="ngram", kv_cache_dtype=cache_dtype)
    answers = generate(without, scheduler_of(without), requests).answers
    assert answers == generate(runtime, scheduler_of(runtime), requests).answers
    without.close()
    with pytest.raises(ModelError, match=r"tensor mtp\.fc\.weight is missing"):
        start(tmp_path, lora=None, speculative_algorithm="mtp")
