"""With and without speculation, every request gets the same tokens and log-probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from grammar_engine import (
    VOCAB,
    core_of,
    regex,
    schema,
    start_model,
    tokenizer_and_vocabulary,
)

from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenDelta, TokenRequest
from penstock.runtime import CpuRuntime
from penstock.scheduler.prefill_budget import PrefillBudget
from penstock.scheduler.step_costs import StepCosts
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.tiny_tokenizer import IM_END

_, VOCABULARY = tokenizer_and_vocabulary()
COPIED = tuple(b"one two three one two three one two ")
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "cold": Sampling(temperature=0.3),
    "narrow": Sampling(temperature=1.0, top_k=3, top_p=0.9, min_p=0.05),
    "biased": Sampling(temperature=0.4, logit_bias={32: 4.0, 101: 4.0}),
    "penalized": Sampling(temperature=0.3, presence_penalty=0.2, repetition_penalty=1.05),
    "dry": Sampling(temperature=0.3, dry_multiplier=0.2, dry_base=1.2, dry_allowed_length=4),
}
GRAMMARS = {
    "free": None,
    "words": regex("(the |thing |in ){40}"),
    "rows": schema({"type": "array", "items": {"enum": ["the thing", "other"]}, "minItems": 99}),
}


@pytest.fixture(scope="module", params=["auto", pytest.param("int8", marks=pytest.mark.slow)])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuRuntime]:
    """A runtime with a float16 or an int8 cache."""
    folder = tmp_path_factory.mktemp("model") / "small"
    started = start_model(folder, kv_cache_dtype=request.param)
    yield started
    started.close()


def requests() -> list[TokenRequest]:
    ways = itertools.product(SAMPLINGS.items(), GRAMMARS.items(), (None, 2))
    return [
        TokenRequest(
            id=f"{name}, {grammar_name}, {top}",
            token_ids=COPIED,
            sampling=sampling,
            seed=5,
            max_tokens=90,
            stop_token_ids=frozenset({IM_END}),
            top_logprobs=top,
            constraint=grammar,
        )
        for (name, sampling), (grammar_name, grammar), top in ways
    ]


def answers(
    runtime: CpuRuntime | EngineCore, wanted: list[TokenRequest], **options: int | bool
) -> tuple[dict[str, list[TokenDelta]], int]:
    """Return the tokens of each request and the number of accepted draft tokens. `options`: of a
    new engine over a runtime."""
    core = runtime if isinstance(runtime, EngineCore) else core_of(runtime, **options)
    core.set_tokenizer(VOCABULARY)
    found: dict[str, list[TokenDelta]] = {request.id: [] for request in wanted}
    for request in wanted:
        core.submit(request)
    open_requests = len(wanted)
    while open_requests:
        for chunk in core.step():
            assert chunk.finish != "error", chunk.error
            found[chunk.id] += chunk.tokens
            open_requests -= chunk.finish is not None
    return found, core.gauges().accepted_tokens


@pytest.fixture(scope="module", params=["the same", "another"])
def drafted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuRuntime]:
    """The model with a draft model, which is the same model or another random one."""
    folder = tmp_path_factory.mktemp("models")
    seed = 0 if request.param == "the same" else 1
    draft = write_small_llama(folder / "draft", seed, vocab=VOCAB)
    started = start_model(folder / "small", draft_model=str(draft))
    yield started
    started.close()


def cheap_draft_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a draft token cost a twentieth of a step, and the drafter nothing, on any machine."""
    for costs in (PrefillBudget, StepCosts):
        monkeypatch.setattr(costs, "token_cost", lambda self, rows: 0.05)
        monkeypatch.setattr(costs, "step_token_s", lambda self, rows: 1e6)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 20}, {"num_blocks": 25}, {"max_num_seqs": 2}],
    ids=["batched", "chunked", "preempted", "by twos"],
)
def test_speculation_changes_no_answer(
    runtime: CpuRuntime, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    plain, accepted = answers(runtime, requests(), enable_prefix_caching=False)
    assert accepted == 0
    cheap_draft_tokens(monkeypatch)
    speculated, accepted = answers(runtime, requests(), speculative_algorithm="ngram", **options)
    assert accepted > 100
    for id, tokens in plain.items():
        assert speculated[id] == tokens, id


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 20}, {"num_blocks": 25}, {"max_num_seqs": 2}],
    ids=["batched", "chunked", "preempted", "by twos"],
)
def test_a_draft_model_changes_no_answer(
    drafted: CpuRuntime, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    plain, _ = answers(drafted, requests(), enable_prefix_caching=False)
    cheap_draft_tokens(monkeypatch)
    core = core_of(drafted, draft_model="draft", **options)
    for _ in range(2):  # the second time with prefixes in the cache
        speculated, _ = answers(core, requests())
        for id, tokens in plain.items():
            assert speculated[id] == tokens, id
    gauges = core.gauges()
    assert gauges.draft_model_draft_tokens > 50
    assert gauges.draft_seconds > 0.0
