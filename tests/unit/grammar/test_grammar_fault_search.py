"""The search for the fault in a schema has a time limit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Constraint
from penstock.grammar import compiler as grammar
from penstock.grammar.compiler import GrammarCompiler
from penstock.grammar.vocabulary import Vocabulary


class SlowTrial:
    """A trial that reports the same error for every grammar and takes a second of its own clock per
    call."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.calls = 0

    def error_of(self, grammar: str, timeout_s: float = 4.0) -> str | None:
        self.calls += 1
        return "always"

    def now(self) -> float:
        return float(self.calls)


def test_search_for_a_fault_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = SlowTrial(Vocabulary("{}", ()), 1)
    monkeypatch.setattr(grammar, "GrammarTrial", lambda vocabulary, size: trial)
    monkeypatch.setattr(grammar, "time", SimpleNamespace(monotonic=trial.now))
    schema = {"type": "nope", "minLength": -5, **{f"k{i}": 1 for i in range(300)}}
    compiler = GrammarCompiler(Vocabulary("{}", ()), 1)
    with pytest.raises(InvalidRequest, match="JSON schema cannot be used"):
        compiler.compile(Constraint("json_schema", json.dumps(schema), False))
    assert trial.calls < 10
