"""A model that is divided among two processes answers as it does on one device: real processes, on
CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grammar_engine import VOCAB, compile_all, regex, request, run, schema, tokenizer_and_vocabulary
from lora_base_models import draw_adapters, with_adapters
from msgspec import structs
from scheduled_requests import Outcome, Request, generate, requests_over, scheduler_of
from test_device_runtime import chunks_of
from tp_runtimes import (
    rank_processes,
    start_single,
    start_tensor_parallel,
    tensor_parallel_settings,
)

import penstock.runtime.ranks.runtime as leading
from penstock.adapters.errors import AdapterRefused
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.ranks.runtime import TensorParallelRuntime
from penstock.scheduler import NO_ADAPTER
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama

WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 23},
    "preempted": {"num_blocks": 6},
    "speculating": {"speculation": True},
}
SLOTS = [NO_ADAPTER, 0, 1, NO_ADAPTER, 2, 1, 3, 0, 1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its vocabulary is odd."""
    folder = tmp_path_factory.mktemp("base") / "small-llama"
    return write_small_llama(folder, vocab=VOCAB)


@pytest.fixture(scope="module")
def ranked(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorParallelRuntime]:
    runtime = with_adapters(start_tensor_parallel(base), tmp_path_factory.mktemp("ranked"))
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def alone(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuRuntime]:
    runtime = with_adapters(start_single(base), tmp_path_factory.mktemp("alone"))
    yield runtime
    runtime.close()


def requests() -> list[Request]:
    """Greedy and drawn ones, some with penalties: see `requests_over`."""
    return [replace(one, max_tokens=min(one.max_tokens, 24)) for one in requests_over(VOCAB, 60)]


def assert_same(outcome: Outcome, right: Outcome) -> None:
    """Sums over ranks are rounded otherwise."""
    assert outcome.cached_tokens == right.cached_tokens
    assert outcome.preemptions == right.preemptions
    for answer, expected in zip(outcome.answers, right.answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in expected]
        logprobs = [logprob for _, logprob, _ in expected]
        assert [logprob for _, logprob, _ in answer] == pytest.approx(logprobs, abs=1e-3)


def both(
    ranked: TensorParallelRuntime,
    alone: GpuRuntime,
    asked: list[Request],
    slots: list[int] | None = None,
    **options: Any,
) -> tuple[Outcome, Outcome]:
    """What each answers, with blocks for the same number of tokens."""
    sizes = {"num_blocks": alone.info.cache_blocks} | options
    of_ranks = generate(ranked, scheduler_of(ranked, **sizes), asked, slots)  # type: ignore[arg-type]
    return of_ranks, generate(alone, scheduler_of(alone, **sizes), asked, slots)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_answer_as_one(
    ranked: TensorParallelRuntime, alone: GpuRuntime, way: str
) -> None:
    of_ranks, right = both(ranked, alone, requests(), **WAYS[way])
    assert_same(of_ranks, right)
    assert any(right.cached_tokens) or way == "batched"
    assert (right.preemptions > 0) == (way == "preempted")


@pytest.mark.parametrize("way", ["chunked", "speculating"])
def test_a_mix_of_adapters_answers_as_on_one(
    ranked: TensorParallelRuntime, alone: GpuRuntime, way: str
) -> None:
    of_ranks, right = both(ranked, alone, requests(), SLOTS, **WAYS[way])
    assert_same(of_ranks, right)
    plain = generate(alone, scheduler_of(alone), requests())  # type: ignore[arg-type]
    assert plain.answers != right.answers, "the adapters must matter"


def core_over(runtime: Any, **options: Any) -> EngineCore:
    return EngineCore.for_runtime(runtime, tensor_parallel_settings(lora=None, **options))


def test_steps_planned_ahead_answer_as_on_one(
    ranked: TensorParallelRuntime, alone: GpuRuntime
) -> None:
    assert ranked.info.overlaps
    of_ranks, right = (chunks_of(core_over(one), requests()) for one in (ranked, alone))
    assert of_ranks == right


def test_grammars_allow_the_same_tokens(ranked: TensorParallelRuntime, alone: GpuRuntime) -> None:
    """Masks of the host, forced tokens, and free answers beside them."""
    _, vocabulary = tokenizer_and_vocabulary()
    asked = [
        request("number", regex("[0-9]{3}-[0-9]{2}")),
        request("object", schema({"type": "object", "properties": {"a": {"type": "boolean"}}})),
        request("free", None, max_tokens=20, top_logprobs=2),
    ]
    answers = []
    for runtime in (ranked, alone):
        core = core_over(runtime)
        core.set_tokenizer(vocabulary)
        compile_all(core, asked)
        answers.append(run(core, [structs.replace(one, id=f"{one.id} again") for one in asked]))
    assert answers[0] == answers[1]
    assert all(answer.error is None for answer in answers[0].values())


def test_prompts_are_scored_as_on_one(ranked: TensorParallelRuntime, alone: GpuRuntime) -> None:
    prompt = tuple((7 * place * place + 3) % VOCAB for place in range(50))
    found = []
    for runtime in (ranked, alone):
        core = core_over(runtime, max_num_batched_tokens=20)
        greedy = Sampling(temperature=0.0)
        core.submit(TokenRequest("r", prompt, greedy, 0, 4, prompt_logprobs=2))
        scores = []
        while core.has_work:
            scores += [token for chunk in core.step() for token in (*chunk.prompt, *chunk.tokens)]
        found.append(scores)
    of_ranks, right = found
    assert len(right) == len(prompt) - 1 + 4
    assert [score.token_id for score in of_ranks] == [score.token_id for score in right]
    for one, expected in zip(of_ranks, right, strict=True):
        assert one.logprob == pytest.approx(expected.logprob, abs=1e-3)


def test_blocks_that_came_back_from_the_host_are_read_by_all(
    ranked: TensorParallelRuntime, alone: GpuRuntime
) -> None:
    asked = [
        [Request(tuple((first * 37 + 11 * at * at) % VOCAB for at in range(80)), 8, Sampling(0.0))]
        for first in (1, 2)
    ]
    needed = -(-(80 + 8) // ranked.info.block_size) + 1
    tight = scheduler_of(ranked, num_blocks=needed)
    first = generate(ranked, tight, asked[0])  # type: ignore[arg-type]
    generate(ranked, tight, asked[1])  # type: ignore[arg-type]
    back = generate(ranked, tight, asked[0])  # type: ignore[arg-type]
    assert tight.gauges().host_cache_restores > 0
    assert back.cached_tokens == [80 - ranked.info.block_size]
    assert_same(Outcome(back.answers, [0], 0), first)
    assert_same(first, generate(alone, scheduler_of(alone), asked[0]))  # type: ignore[arg-type]


def test_graphs_are_captured_as_on_one(ranked: TensorParallelRuntime, alone: GpuRuntime) -> None:
    both(ranked, alone, requests()[:1])
    both(ranked, alone, requests()[:1], [1])
    forms = {(size, form.adapted) for size, form in ranked.captured if form.samples}
    assert {(1, False), (1, True)} <= forms


def test_idle_ranks_capture_the_same(ranked: TensorParallelRuntime, alone: GpuRuntime) -> None:
    both(ranked, alone, requests()[:1])
    wanted = {(size, form) for _, form in ranked.captured for size in alone._graphs.sizes}
    while ranked.prepare():
        pass
    assert set(ranked.captured) == wanted
    outcome, right = both(ranked, alone, requests()[:4])
    assert_same(outcome, right)


def test_a_slice_that_a_rank_refuses_refuses_the_adapter(
    ranked: TensorParallelRuntime,
    alone: GpuRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is told later finds the connection in order, and the slots as they were."""
    assert ranked.adapters is not None
    (adapter, *_) = draw_adapters(tmp_path, 1)
    own = leading.shard_adapter

    def torn(whole: Any, spec: Any, rank: int, count: int) -> Any:
        part = own(whole, spec, rank, count)
        return part if rank == 0 else type(part)("torn", part.rank, part.size_bytes, ())

    with monkeypatch.context() as patched:
        patched.setattr(leading, "shard_adapter", torn)
        with pytest.raises(AdapterRefused, match="rank 1: ") as refused:
            ranked.adapters.pack(adapter)
    assert refused.value.code == "lora_load_task_failed"
    ranked.adapters.clear(0)
    assert_same(*both(ranked, alone, requests()[2:4], [1, 2]))
    ranked.adapters.install(0, ranked.adapters.pack(adapter))
    assert_same(*both(ranked, alone, requests()[2:4], [0, 1]))


def test_the_formula_is_of_each_device(ranked: TensorParallelRuntime, alone: GpuRuntime) -> None:
    assert "MiB on each of 2 devices, and 2 MiB of the host" in ranked.report
    assert "x 1 heads x 16" in ranked.report and "x 2 heads x 16" in alone.report
    assert ranked.info.vocab_size == VOCAB and ranked.info.max_model_len == CONTEXT
    assert ranked.info.cpu_blocks == alone.info.cpu_blocks
    assert len(rank_processes()) == 1
