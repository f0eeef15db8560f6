"""Grammars of an engine that gets no thread: requests are refused, and the engine goes on."""

from __future__ import annotations

import threading

import pytest
from tiny_text import tiny_tokenizer

from penstock.base.errors import Unavailable
from penstock.dialog import Constraint
from penstock.engine.grammars import Grammars, guide_of
from penstock.engine.types import Grammar
from penstock.text.grammar import serialize, vocabulary_of

DIGITS = Grammar(serialize(Constraint("regex", "[0-9]+")))


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_grammars_are_refused_until_there_is_a_thread_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = tiny_tokenizer()
    grammars = Grammars(tokenizer.vocab_size)
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", no_thread)
        grammars.teach(vocabulary_of(tokenizer))
        for _ in range(2):
            with pytest.raises(Unavailable):
                grammars.compile(DIGITS)
    compiled = grammars.compile(DIGITS)
    compiled.result(timeout=60)
    assert guide_of(compiled).accept(ord("7"))
    grammars.close()
