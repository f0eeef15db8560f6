"""The tokens that may end an answer: the model's own, those of the request, and after which
minimum."""

from __future__ import annotations

from typing import Any

from scripted_generator import run

from penstock.dialog import GenerateRequest, Limits, Text
from penstock.dialog.fold import fold
from penstock.generation import Generator
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine

TOKENIZER = tiny_tokenizer()
A, B = TOKENIZER.encode("a"), TOKENIZER.encode("b")


async def said(engine: ScriptedEngine, **fields: Any) -> tuple[str, str]:
    """The text of an answer, and how it ended."""
    request = GenerateRequest(prompt="x", **fields)
    answer = fold([event async for event in run(Generator(engine, TOKENIZER), request)])
    (part,) = answer.choices[0].parts
    assert isinstance(part, Text)
    return part.text, answer.choices[0].finish


async def test_stop_tokens_of_a_request_end_its_answer_beside_the_models_own() -> None:
    engine = ScriptedEngine([*A, *B, IM_END])
    assert await said(engine) == ("ab", "stop")
    assert await said(engine, stop_token_ids=tuple(B)) == ("a", "stop")
    assert IM_END in engine.requests[1].stop_token_ids


async def test_stop_tokens_of_a_request_are_left_where_the_models_own_are_ignored() -> None:
    engine = ScriptedEngine([IM_END, *A, *B])
    assert await said(engine, stop_token_ids=tuple(B), ignore_eos=True) == ("a", "stop")
    assert engine.requests[0].stop_token_ids == frozenset(B)


async def test_the_engine_is_told_from_when_on_an_answer_may_end() -> None:
    engine = ScriptedEngine([*A, IM_END])
    await said(engine)
    await said(engine, limits=Limits(min_tokens=5))
    assert [request.min_tokens for request in engine.requests] == [0, 5]
