"""A draft head gives the bits of the whole head, changes no answer, and is left for text that it
does not know: with an MTP head, an assistant and a draft model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import start
from scheduled_requests import Request, generate, requests_over, scheduler_of

from penstock.dialog import Sampling
from penstock.models.decoder.draft_head import HeadName
from penstock.runtime import CpuRuntime
from penstock.runtime.drafts.draft_vocabulary import DraftVocabulary
from penstock.scheduler import Scheduler
from penstock.scheduler.ngram_speculation import NgramSpeculator
from tests.support.assistant_models import assisted_model
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.small_mtp import write_right_mtp

SPECIAL = 3
"""The last tokens of each vocabulary are special."""


@dataclass(frozen=True)
class Case:
    """`vocab`: tokens of the model. `asked`: tokens of the draft vocabulary. `row_bytes`: the size
    of a row of the drafter's head. `write`: writes the models in a folder and returns the target
    and the settings of the drafter."""

    vocab: int
    asked: int
    row_bytes: int
    write: Callable[[Path], tuple[Path, dict[str, Any]]]

    @property
    def ids(self) -> list[int]:
        return [*range(self.asked - SPECIAL), *range(self.vocab - SPECIAL, self.vocab)]


def write_tokenizer(folder: Path, vocab: int) -> None:
    special = [{"id": id, "content": f"<|special {id}|>"} for id in range(vocab - SPECIAL, vocab)]
    words = {f"word{id}": id for id in range(vocab - SPECIAL)}
    model = {"type": "BPE", "vocab": words, "merges": []}
    document = {"model": model, "added_tokens": special}
    (folder / "tokenizer.json").write_text(json.dumps(document))


def mtp(folder: Path) -> tuple[Path, dict[str, Any]]:
    target = write_right_mtp(folder / "target")
    return target, {"speculative_algorithm": "mtp"}


def draft_model(folder: Path) -> tuple[Path, dict[str, Any]]:
    target = write_small_llama(folder / "target")
    return target, {"draft_model": str(target)}


def assistant(folder: Path) -> tuple[Path, dict[str, Any]]:
    target, draft = assisted_model("31b").save(folder)
    return target, {"draft_model": str(draft), "dtype": "f32"}


CASES = {
    "mtp": Case(200, 60, 4 * 64, mtp),
    "assistant": Case(64, 20, 4 * 32, assistant),
    "draft model": Case(200, 60, 2 * 64, draft_model),
}


@dataclass
class Started:
    case: Case
    runtime: CpuRuntime
    heads: list[HeadName]
    """The language-model head of each draft."""

    @property
    def vocabulary(self) -> DraftVocabulary:
        drafter: Any = self.runtime._drafter
        vocabulary: DraftVocabulary = drafter._sampler.vocabulary
        return vocabulary

    def scheduler(self, **options: Any) -> Scheduler:
        """Return a scheduler for which a token costs a hundredth of a step's fixed second."""
        scheduler = scheduler_of(self.runtime, speculation=True, **options)
        for tokens in (1, 100):
            scheduler._planner.prefill_budget.observe(tokens, 1.0 + tokens / 100)
        return scheduler


@pytest.fixture(scope="module", params=list(CASES))
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    case = CASES[request.param]
    path, options = case.write(tmp_path_factory.mktemp("model"))
    write_tokenizer(path, case.vocab)
    with pytest.MonkeyPatch.context() as patch:  # the models are small, but not their layers
        patch.setattr("penstock.runtime.drafts.draft_vocabulary._LEAST_SAVING", 0.0)
        runtime = start(path, lora=None, threads=1, draft_vocabulary=case.asked, **options)
    drafter: Any = runtime._drafter
    heads: list[HeadName] = []
    choose = drafter._sampler.head

    def recorded(rows: list[int]) -> HeadName:
        head = choose(rows)
        if rows:
            heads.append(head)
        return head

    drafter._sampler.head = recorded
    yield Started(case, runtime, heads)
    runtime.close()


@pytest.fixture(autouse=True)
def no_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without n-gram lookup, all draft tokens come from the drafter."""
    monkeypatch.setattr(NgramSpeculator, "propose", lambda *arguments: ())


def limited(started: Started, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Set the share of unknown text up to which the draft head is used."""
    drafter: Any = started.runtime._drafter
    vocabulary = DraftVocabulary(started.vocabulary.ids, share)
    monkeypatch.setattr(drafter._sampler, "vocabulary", vocabulary)


def test_the_draft_vocabulary_has_the_first_tokens_and_the_special_ones(started: Started) -> None:
    assert started.vocabulary.ids.tolist() == started.case.ids
    assert 0 < started.vocabulary.most_outside < 1


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 21}], ids=["batched", "chunked"]
)
def test_drafts_change_no_answer(
    started: Started, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    limited(started, monkeypatch, 1.0)
    requests = requests_over(started.case.vocab, 100)
    plain = scheduler_of(started.runtime, prefix_caching=False)
    expected = generate(started.runtime, plain, requests).answers
    scheduler = started.scheduler(**options)
    for _ in range(2):  # the second time with cached prefixes
        assert generate(started.runtime, scheduler, requests).answers == expected
    gauges = scheduler.gauges()
    assert gauges.draft_tokens > 20
    assert set(started.heads) >= {"draft"}


def test_both_heads_give_the_same_bits(started: Started) -> None:
    """The logits of every pass, with the other head in its place."""
    drafter: Any = started.runtime._drafter
    runner, name = (
        (drafter._backend, "logits")
        if hasattr(drafter, "_backend")
        else (started.runtime._backend.mtp, "run")
    )
    run, ids = getattr(runner, name), started.vocabulary.ids
    compared = 0

    def both(*arguments: Any) -> Any:
        nonlocal compared
        *given, head = arguments
        copies = []
        for one in ("whole", "draft"):
            found = run(*given, one)
            copies.append((found if name == "logits" else found[0]).copy())
        assert np.array_equal(copies[0][:, ids], copies[1])
        compared += len(copies[1])
        return run(*given, head)

    setattr(runner, name, both)
    generate(started.runtime, started.scheduler(), requests_over(started.case.vocab, 40)[:3])
    delattr(runner, name)
    assert compared > 20


def forced(token: int) -> Sampling:
    return Sampling(temperature=0.8, logit_bias={token: 100.0})


def drafts_of(started: Started, request: Request) -> tuple[int, int]:
    scheduler = started.scheduler()
    (answer,) = generate(started.runtime, scheduler, [request]).answers
    (plain,) = generate(started.runtime, scheduler_of(started.runtime), [request]).answers
    assert [token for token, *_ in answer] == [token for token, *_ in plain]
    gauges = scheduler.gauges()
    return gauges.draft_tokens, gauges.accepted_tokens


def test_special_tokens_can_be_drafted(started: Started) -> None:
    request = Request(tuple(range(10)), 30, forced(started.case.vocab - 1))
    before = len(started.heads)
    drafted, accepted = drafts_of(started, request)
    assert accepted == drafted > 15
    assert set(started.heads[before:]) == {"draft"}


def test_other_text_is_drafted_with_the_whole_head(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token outside is drafted once enough of the text are such tokens, and not before."""
    outside = started.case.asked + 5
    request = Request(tuple(range(10)), 40, forced(outside))
    limited(started, monkeypatch, 1.0)
    before = len(started.heads)
    drafted, accepted = drafts_of(started, request)
    assert accepted == 0 < drafted and set(started.heads[before:]) == {"draft"}
    limited(started, monkeypatch, 0.5)
    before = len(started.heads)
    unknown = Request(tuple(range(outside, outside + 10)), 40, forced(outside))
    drafted, accepted = drafts_of(started, unknown)
    assert accepted == drafted > 15
    assert set(started.heads[before:]) == {"whole"}


def test_a_bias_of_tokens_outside_does_not_count(started: Started) -> None:
    limited = {started.case.asked + 5: 5.0, 2: 100.0, started.case.asked + 6: -5.0}
    request = Request(tuple(range(10)), 30, Sampling(temperature=0.8, logit_bias=limited))
    drafted, accepted = drafts_of(started, request)
    assert accepted == drafted > 15


@pytest.mark.parametrize("name", ["mtp", "draft model"])
@pytest.mark.parametrize("asked", [0, 200, 5000])
def test_a_model_may_have_no_draft_head(tmp_path: Path, name: str, asked: int) -> None:
    path, options = CASES[name].write(tmp_path)
    write_tokenizer(path, CASES[name].vocab)
    runtime = start(path, lora=None, threads=1, draft_vocabulary=asked, **options)
    drafter: Any = runtime._drafter
    assert drafter._sampler.vocabulary is None
    runtime.close()


def test_a_folder_without_a_tokenizer_has_no_draft_head(tmp_path: Path) -> None:
    path, options = mtp(tmp_path)
    runtime = start(path, lora=None, threads=1, draft_vocabulary=60, **options)
    drafter: Any = runtime._drafter
    assert drafter._sampler.vocabulary is None
    runtime.close()


def test_the_draft_head_is_in_the_memory_formula(started: Started, tmp_path: Path) -> None:
    path, options = started.case.write(tmp_path)
    write_tokenizer(path, started.case.vocab)
    whole = start(path, lora=None, threads=1, draft_vocabulary=0, **options)
    more = started.runtime.info.memory_bytes - whole.info.memory_bytes
    assert more == started.case.row_bytes * started.case.asked
    whole.close()
