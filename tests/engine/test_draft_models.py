"""A draft model proposes the target's samples, in every kind of request, and only if it fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lora_base_models import start, with_adapters
from scheduled_requests import Request, generate, requests_over, scheduler_of

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.runtime import CpuRuntime
from penstock.scheduler import NO_ADAPTER, Scheduler, SchedulerGauges
from penstock.scheduler.ngram_speculation import NgramSpeculator
from tests.support.checkpoints.small_hybrid import write_small_hybrid
from tests.support.checkpoints.small_latent import write_small_latent
from tests.support.checkpoints.small_llama import HEAD_DIM, VOCAB, write_small_llama

FREE, GREEDY = Sampling(temperature=1.0), Sampling(temperature=0.0)
NARROW = Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02)
BIASED = Sampling(temperature=0.9, logit_bias={3: 2.0, 5: -9.0})
CACHES = ("auto", "int8")
"""The types of the KV caches of target and draft model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    return write_small_llama(folder / "base")


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    return write_small_llama(folder / "other", seed=1)


@pytest.fixture
def no_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without n-gram lookup, all draft tokens come from the draft model."""
    monkeypatch.setattr(NgramSpeculator, "propose", lambda *arguments: ())


def speculating(runtime: CpuRuntime, **options: Any) -> Scheduler:
    """Return a scheduler for which a token costs a hundredth of a step's fixed second."""
    scheduler = scheduler_of(runtime, speculation=True, **options)
    for tokens in (1, 100):
        scheduler._planner.prefill_budget.observe(tokens, 1.0 + tokens / 100)
    return scheduler


def drafts_of(runtime: CpuRuntime, asked: list[Request], **options: Any) -> SchedulerGauges:
    """Return the counters after `asked`, one after another, whose answers must be those without
    drafts."""
    plain, scheduler = scheduler_of(runtime, prefix_caching=False), speculating(runtime, **options)
    for one in asked:
        answers = generate(runtime, scheduler, [one]).answers
        assert answers == generate(runtime, plain, [one]).answers
    return scheduler.gauges()


def fresh(count: int = 80) -> list[Request]:
    """Requests whose answers do not repeat their prompts."""
    samplings = (FREE, GREEDY, NARROW, BIASED)
    return [
        Request(tuple(range(10 * place, 10 * place + 33)), count, sampling, seed=place)
        for place, sampling in enumerate(samplings)
    ]


def test_nearly_all_drafts_of_an_equal_model_are_accepted(base: Path, no_ngrams: None) -> None:
    runtime = start(base, lora=None, draft_model=str(base))
    gauges = drafts_of(runtime, fresh())
    assert gauges.draft_model_draft_tokens > 150
    assert gauges.draft_model_accepted_tokens > 0.97 * gauges.draft_model_draft_tokens
    assert "drafter" in runtime.report
    runtime.close()


def test_the_reference_kernels_draft_too(base: Path, no_ngrams: None) -> None:
    runtime = start(base, lora=None, draft_model=str(base), kernel_backend="reference")
    scheduler = speculating(runtime)
    generate(runtime, scheduler, fresh(12)[:1])
    assert scheduler.gauges().draft_model_accepted_tokens > 5
    runtime.close()


def test_drafts_of_an_unlike_model_are_rejected_and_stop(
    base: Path, other: Path, no_ngrams: None
) -> None:
    runtime = start(base, lora=None, draft_model=str(other))
    gauges = drafts_of(runtime, fresh())
    assert 0 < gauges.draft_model_draft_tokens < 0.4 * gauges.generated_tokens
    assert gauges.draft_model_accepted_tokens < 0.3 * gauges.draft_model_draft_tokens
    runtime.close()


@pytest.fixture(scope="module", params=CACHES)
def drafted(request: pytest.FixtureRequest, base: Path) -> Iterator[CpuRuntime]:
    runtime = start(base, lora=None, draft_model=str(base), kv_cache_dtype=request.param)
    yield runtime
    runtime.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 5},
        {"max_num_seqs": 2},
        {"num_blocks": 8},
        {"num_blocks": 7, "max_num_batched_tokens": 23},
        {"prefix_caching": False},
    ],
    ids=["batched", "chunked", "by twos", "preempted", "preempted and chunked", "no prefixes"],
)
def test_answers_are_the_same_in_every_schedule(
    drafted: CpuRuntime, no_ngrams: None, options: dict[str, int]
) -> None:
    asked = requests_over(VOCAB, 100)
    plain = scheduler_of(drafted, prefix_caching=False)
    alone = [generate(drafted, plain, [one]).answers[0] for one in asked]
    scheduler = speculating(drafted, **options)
    for _ in range(2):  # the second time with prefixes in the cache
        outcome = generate(drafted, scheduler, asked)
        assert outcome.answers == alone
    gauges = scheduler.gauges()
    assert gauges.draft_model_accepted_tokens > 0.6 * gauges.draft_model_draft_tokens > 30
    assert (outcome.preemptions > 0) == ("num_blocks" in options)


def test_a_cached_prefix_has_the_keys_of_the_draft_model_only_if_it_computed_them(
    drafted: CpuRuntime, no_ngrams: None
) -> None:
    """The first answer is computed without drafts, so the draft model must catch up with its
    blocks, which the second request finds in the prefix cache."""
    prompt = fresh()[0]
    scheduler = speculating(drafted)
    scheduler._planner._speculates = False
    first = generate(drafted, scheduler, [prompt])
    scheduler._planner._speculates = True
    again = generate(drafted, scheduler, [prompt])
    assert again.answers == first.answers and again.cached_tokens == [32]
    gauges = scheduler.gauges()
    assert gauges.draft_model_accepted_tokens == gauges.draft_model_draft_tokens > 30


def test_prompts_longer_than_the_draft_model_may_catch_up_with_in_a_step(
    base: Path, no_ngrams: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.drafts.draft_model.MAX_CATCH_UP", 8)
    runtime = start(base, lora=None, draft_model=str(base))
    scheduler = speculating(runtime)
    scheduler._planner._speculates = False
    generate(runtime, scheduler, [Request(tuple(range(70)), 1, GREEDY)])
    scheduler._planner._speculates = True
    gauges_before = scheduler.gauges()
    generate(runtime, scheduler, [Request(tuple(range(70)), 60, FREE)])
    gauges = scheduler.gauges()
    assert gauges_before.draft_tokens == 0
    assert gauges.draft_model_accepted_tokens == gauges.draft_model_draft_tokens > 20
    runtime.close()


@pytest.mark.parametrize("cache", CACHES)
def test_rows_with_adapters_draft_with_the_base_of_the_draft_model(
    base: Path, tmp_path: Path, no_ngrams: None, cache: str
) -> None:
    started = start(base, draft_model=str(base), kv_cache_dtype=cache)
    runtime = with_adapters(started, tmp_path)
    asked, slots = fresh(), [0, NO_ADAPTER, 3, 1]
    plain = generate(runtime, scheduler_of(runtime), asked, slots).answers
    scheduler = speculating(runtime)
    assert generate(runtime, scheduler, asked, slots).answers == plain
    gauges = scheduler.gauges()
    assert 0 < gauges.draft_model_accepted_tokens < gauges.draft_model_draft_tokens
    runtime.close()


def test_a_recurrent_target_has_a_draft_model_without_recurrent_layers(
    folder: Path, base: Path, no_ngrams: None
) -> None:
    hybrid = write_small_hybrid(folder / "hybrid", vocab_size=VOCAB)
    runtime = start(hybrid, lora=None, draft_model=str(base))
    gauges = drafts_of(runtime, fresh()[:2])
    assert gauges.draft_model_draft_tokens > 0
    runtime.close()
    with pytest.raises(ModelError, match="recurrent layers"):
        start(hybrid, lora=None, draft_model=str(hybrid))


def test_vocabularies_that_differ_are_refused(folder: Path, base: Path, tmp_path: Path) -> None:
    larger = write_small_llama(folder / "larger", vocab=VOCAB + 600)
    with pytest.raises(ModelError, match="it has 800 tokens, and the model 200"):
        start(base, lora=None, draft_model=str(larger))
    target, draft = tmp_path / "target", tmp_path / "draft"
    for name in (target, draft):
        write_small_llama(name)
    tokens = {f"t{id}": id for id in range(VOCAB)}
    _write_tokenizer(target, tokens)
    with pytest.raises(ModelError, match="no tokenizer to compare"):
        start(target, lora=None, draft_model=str(draft))
    _write_tokenizer(draft, {**tokens, "t7": 8, "t8": 7})
    with pytest.raises(ModelError, match="its token 7 is 't8', and the model's 't7'"):
        start(target, lora=None, draft_model=str(draft))
    (draft / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a valid tokenizer"):
        start(target, lora=None, draft_model=str(draft))
    _write_tokenizer(draft, tokens)
    start(target, lora=None, draft_model=str(draft)).close()


def test_a_smaller_padded_vocabulary_serves(tmp_path: Path, no_ngrams: None) -> None:
    """Tokens that only the target has are read as another token and never proposed."""
    target = write_small_llama(tmp_path / "target", vocab=VOCAB)
    draft = write_small_llama(tmp_path / "draft", vocab=VOCAB - 8)
    for name in (target, draft):
        _write_tokenizer(name, {f"t{id}": id for id in range(VOCAB - 8)})
    runtime = start(target, lora=None, draft_model=str(draft))
    biased = Sampling(temperature=0.5, logit_bias={VOCAB - 1: 4.0}, presence_penalty=0.5)
    gauges = drafts_of(runtime, [Request((VOCAB - 1, 5, VOCAB - 3), 40, biased), *fresh()[:1]])
    assert gauges.draft_model_draft_tokens > 0
    runtime.close()


def test_a_draft_model_with_latents_is_refused_for_an_8_bit_cache(
    base: Path, tmp_path: Path, no_ngrams: None
) -> None:
    latent = write_small_latent(tmp_path / "latent", vocab_size=VOCAB)
    runtime = start(base, lora=None, draft_model=str(latent))
    assert drafts_of(runtime, fresh(20)[:1]).draft_model_draft_tokens > 0
    runtime.close()
    with pytest.raises(ModelError, match="int8; for the draft model latent with latent attention"):
        start(base, lora=None, draft_model=str(latent), kv_cache_dtype="int8")


def test_the_cache_of_the_draft_model_is_in_the_memory_formula(base: Path) -> None:
    sizes = {}
    for cache in CACHES:
        plain, drafted = (
            start(base, lora=None, kv_cache_dtype=cache, **options)
            for options in ({"speculative_algorithm": "ngram"}, {"draft_model": str(base)})
        )
        backends: list[Any] = [drafted._backend, drafted._drafter._backend]  # type: ignore[union-attr]
        sizes[cache] = [
            sum(part.nbytes for one in backend.caches for part in (one.keys, one.values))
            for backend in backends
        ]
        more = drafted.info.memory_bytes - plain.info.memory_bytes
        assert more > sizes[cache][1]
        sizes[cache].append(more - sizes[cache][1])
        plain.close()
        drafted.close()
    assert sizes["auto"][0] == sizes["auto"][1]
    assert sizes["int8"][0] == sizes["int8"][1]
    assert sizes["int8"][0] * 2 * HEAD_DIM == sizes["auto"][0] * (HEAD_DIM + 4)
    assert sizes["auto"][2] == sizes["int8"][2], "weights and buffers do not depend on the cache"


def test_a_drafter_is_refused_where_it_cannot_run(folder: Path, base: Path) -> None:
    with pytest.raises(ModelError, match="nothing"):
        start(base, lora=None, draft_model=str(folder / "nothing"))


def _write_tokenizer(folder: Path, tokens: dict[str, int]) -> None:
    document = {"model": {"type": "BPE", "vocab": tokens, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(document))
