"""Answers that must not end early: no token that would end one is drawn before `min_tokens`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from constrained import (
    VOCAB,
    Answer,
    compile_all,
    core_of,
    regex,
    rehearse_model,
    request,
    run,
    start_model,
    tokenizer_and_vocabulary,
)
from msgspec.structs import replace

from penstock.engine.guide import MinTokensGuide
from penstock.engine.masks import MaskFiller
from penstock.engine.types import TokenRequest
from penstock.runtime import CpuRuntime
from penstock.runtime.gpu import GpuRuntime

TOKENIZER, VOCABULARY = tokenizer_and_vocabulary()
HALF = frozenset(range(0, VOCAB, 2))
"""So many tokens end an answer that one without a minimum is over after a few."""


@pytest.fixture(scope="module", params=[start_model, rehearse_model])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuRuntime | GpuRuntime]:
    started = request.param(tmp_path_factory.mktemp("model") / "small")
    yield started
    started.close()


def at_least(id: str, min_tokens: int, **fields: object) -> TokenRequest:
    wanted = request(id, None, stop_token_ids=HALF, **fields)  # type: ignore[arg-type]
    return replace(wanted, min_tokens=min_tokens)


def answered(runtime: CpuRuntime | GpuRuntime, requests: list[TokenRequest]) -> dict[str, Answer]:
    """The answers of an engine of its own, which leaves no step in flight."""
    core = core_of(runtime)
    core.teach(VOCABULARY)
    compile_all(core, requests)
    answers = run(core, requests)
    while core.has_work:
        core.step()
    return answers


def test_no_answer_ends_before_its_minimum(runtime: CpuRuntime | GpuRuntime) -> None:
    requests = [at_least(f"r{seed}", 20, seed=seed) for seed in range(8)]
    answers = answered(runtime, requests)
    assert all(len(answer.tokens) >= 20 for answer in answers.values())
    assert not any(HALF & set(answer.tokens) for answer in answers.values())
    assert {answer.finish for answer in answers.values()} == {"stop"}
    free = answered(runtime, [replace(one, min_tokens=0) for one in requests])
    assert min(len(answer.tokens) for answer in free.values()) < 5


def test_the_minimum_ends_with_the_answer_that_is_cut_off(runtime: CpuRuntime | GpuRuntime) -> None:
    answer = answered(runtime, [at_least("a", 50, max_tokens=7)])["a"]
    assert len(answer.tokens) == 7 and answer.finish == "length"


def test_an_answer_has_the_same_tokens_beside_others(runtime: CpuRuntime | GpuRuntime) -> None:
    mixed = [
        at_least("least", 30, seed=5),
        request("grammar", regex("(ab)+c"), seed=6),
        at_least("short", 3, seed=7),
        request("free", None, seed=8, max_tokens=40),
    ]
    together = answered(runtime, mixed)
    for one in mixed:
        assert answered(runtime, [one])[one.id].tokens == together[one.id].tokens


def test_a_grammar_ends_where_it_ends(runtime: CpuRuntime | GpuRuntime) -> None:
    answer = answered(runtime, [replace(request("a", regex("the thing")), min_tokens=90)])["a"]
    assert TOKENIZER.decode(answer.tokens) == "the thing" and answer.finish == "stop"


def test_a_draft_is_followed_as_far_as_it_could_be_drawn() -> None:
    guide = MinTokensGuide(2, frozenset({7}))
    assert guide.follow([1, 7, 2]) == 1
    assert guide.follow([1, 2, 7]) == 3  # two were drawn before it
    assert guide.accept(5) and guide.follow([7]) == 0
    assert guide.accept(5) and guide.follow([7]) == 1


def test_one_mask_is_for_the_places_of_a_draft_that_are_held_back() -> None:
    filler = MaskFiller(70, threads=1)
    step = filler.begin([(None, ()), (MinTokensGuide(2, frozenset({3, 69, 500})), (1, 2))])
    assert step is not None
    masks, mask_of = step.wait()
    assert mask_of.tolist() == [-1, 0, 0, -1]
    bits = np.unpackbits(masks[0].view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits[:70] == 0).tolist() == [3, 69]
    assert filler.begin([(MinTokensGuide(0, frozenset({3})), ())]) is None
    filler.close()
