"""If no thread can start, requests with a grammar are refused and the engine continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import llguidance
import pytest
from grammar_engine import core_of, regex, request, run, start_model, tokenizer_and_vocabulary

from penstock.base.errors import Unavailable
from penstock.dialog import Constraint
from penstock.grammar.cache import GrammarCache, guide_of
from penstock.grammar.compiler import serialize
from penstock.grammar.types import Grammar
from penstock.runtime import CpuRuntime
from penstock.text.grammar_vocabulary import vocabulary_of
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from tests.support.thread_exhaustion import fail_thread_starts

DIGITS = Grammar(serialize(Constraint("regex", "[0-9]+")))


def test_grammars_are_refused_until_a_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = tiny_tokenizer()
    grammars = GrammarCache(tokenizer.vocab_size)
    with monkeypatch.context() as crowded:
        fail_thread_starts(crowded)
        grammars.set_tokenizer(vocabulary_of(tokenizer))
        for _ in range(2):
            with pytest.raises(Unavailable):
                grammars.compile(DIGITS)
    compiled = grammars.compile(DIGITS)
    compiled.result(timeout=60)
    assert guide_of(compiled).accept(ord("7"))
    grammars.close()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRuntime]:
    started = start_model(tmp_path_factory.mktemp("model") / "small")
    yield started
    started.close()


def no_fillers(crowded: pytest.MonkeyPatch) -> None:
    def no_executor(_: int) -> None:
        raise ValueError("Resource temporarily unavailable (os error 11)")

    crowded.setattr(llguidance, "LLExecutor", no_executor)


@pytest.mark.parametrize("crowd", [fail_thread_starts, no_fillers])
def test_requests_are_refused_until_mask_threads_can_start(
    runtime: CpuRuntime,
    crowd: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = core_of(runtime)
    tokenizer, vocabulary = tokenizer_and_vocabulary()
    core.set_tokenizer(vocabulary)
    core._grammars.compile(regex("[0-9]{3}")).result(timeout=60)
    wanted = request("a", regex("[0-9]{3}"))
    with monkeypatch.context() as crowded:
        crowd(crowded)
        for _ in range(2):
            with pytest.raises(Unavailable):
                core.submit(wanted)
            assert not core.has_work
    (answer,) = run(core, [wanted]).values()
    assert tokenizer.decode(answer.tokens).isdigit()
