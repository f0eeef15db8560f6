"""Compiling constraints where the machine is short of something: what failed is tried again."""

from __future__ import annotations

import asyncio

import pytest

from penstock.dialog import Constraint
from penstock.generation import constraint_compiler as module
from penstock.generation.constraint_compiler import ConstraintCompiler
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.thread_exhaustion import fail_thread_starts, raise_no_thread

DIGITS = Constraint("regex", "[0-9]+")


async def test_compiler_that_could_not_be_started_is_started_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constraints = ConstraintCompiler(ScriptedEngine([1]), tiny_tokenizer())
    with monkeypatch.context() as crowded:
        crowded.setattr(module, "vocabulary_of", raise_no_thread)
        with pytest.raises(RuntimeError, match="thread"):
            await constraints.prepare(DIGITS)
    assert (await constraints.prepare(DIGITS)).value
    constraints.close()


async def test_threads_that_could_not_be_started_hold_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constraints = ConstraintCompiler(ScriptedEngine([1]), tiny_tokenizer())
    await constraints.prepare(Constraint("regex", "[a-z]+"))
    with monkeypatch.context() as crowded:
        fail_thread_starts(crowded)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="thread"):
                await asyncio.wait_for(constraints.prepare(DIGITS), 10)
    assert (await asyncio.wait_for(constraints.prepare(DIGITS), 60)).value
    constraints.close()
