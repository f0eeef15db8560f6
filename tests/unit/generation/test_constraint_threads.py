"""Constraints where the machine is short of something: what failed is tried again."""

from __future__ import annotations

import asyncio

import pytest
from crowded import give_no_thread, no_thread
from scripted_engine import ScriptedEngine
from tiny_text import tiny_tokenizer

from penstock.dialog import Constraint
from penstock.generation import constraints as module
from penstock.generation.constraints import Constraints

DIGITS = Constraint("regex", "[0-9]+")


async def test_compiler_that_could_not_be_started_is_started_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constraints = Constraints(ScriptedEngine([1]), tiny_tokenizer())
    with monkeypatch.context() as crowded:
        crowded.setattr(module, "vocabulary_of", no_thread)
        with pytest.raises(RuntimeError, match="thread"):
            await constraints.prepare(DIGITS)
    assert (await constraints.prepare(DIGITS)).value
    constraints.close()


async def test_threads_that_could_not_be_started_hold_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constraints = Constraints(ScriptedEngine([1]), tiny_tokenizer())
    await constraints.prepare(Constraint("regex", "[a-z]+"))
    with monkeypatch.context() as crowded:
        give_no_thread(crowded)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="thread"):
                await asyncio.wait_for(constraints.prepare(DIGITS), 10)
    assert (await asyncio.wait_for(constraints.prepare(DIGITS), 60)).value
    constraints.close()
