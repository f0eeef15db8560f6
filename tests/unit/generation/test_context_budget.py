"""Prompts that do not fit the context: refused, or cut, at little cost."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from scripted_generator import HI, TOKENIZER, answer_of, events_of, generator, ids, info, text

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    Text,
    ToolCall,
    ToolResult,
)
from penstock.generation.prompt.builder import PromptBuilder
from penstock.generation.prompt.context_budget import Prompt
from penstock.text import ChatTemplate, Tokenizer
from tests.support.checkpoints.tiny_tokenizer import CHATML, END_OF_TEXT, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine

CALL = Message("assistant", (ToolCall("c", "f", "{}"),))
RESULT = Message("tool", (ToolResult("c", "done"),))
LONG = "b" * 400_000


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that were tokenized since."""
    encode, lengths = Tokenizer.encode, []

    def counted(self: Tokenizer, text: str, *, add_special: bool = False) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, add_special=add_special)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    return lengths


class TestContext:
    async def test_a_long_prompt_is_refused_with_the_numbers(self) -> None:
        for prompt in ("b" * 40, tuple([5] * 40)):
            with pytest.raises(ContextLengthExceeded, match=r"too long: 40 tokens > 39 maximum"):
                await events_of(ScriptedEngine([], info=info(40)), prompt=prompt)

    async def test_a_prompt_that_leaves_one_token_is_served(self) -> None:
        engine = ScriptedEngine(ids("ab"), info=info(40))
        assert text(await answer_of(engine, prompt="b" * 39)) == "a"

    async def test_a_hopeless_text_is_refused_without_tokenizing_it(self) -> None:
        engine = ScriptedEngine([], info=info(40))
        with pytest.raises(ContextLengthExceeded, match="over 40 tokens > 39 maximum"):
            await events_of(engine, prompt="b" * 10_000_000)
        with pytest.raises(ContextLengthExceeded, match="over 40 tokens > 39 maximum"):
            await events_of(engine, messages=(Message("user", (Text("b" * 10_000_000),)),))

    @pytest.mark.parametrize("truncate", [False, True])
    async def test_of_a_far_too_long_text_only_a_part_is_tokenized(
        self, truncate: bool, taken: list[int]
    ) -> None:
        engine = ScriptedEngine([], info=info(4000))
        long, limits = "b" * 1_900_000 + "z", Limits(max_tokens=4, truncate=truncate)
        asked: list[dict[str, object]] = [
            {"prompt": long},
            {"messages": (Message("user", (Text(long),)),)},
            {"messages": tuple(Message("user", (Text(long[-1000:]),)) for _ in range(1900))},
        ]
        for fields in asked:
            taken.clear()
            refused = contextlib.nullcontext() if truncate else pytest.raises(ContextLengthExceeded)
            with refused:
                await events_of(engine, limits=limits, **fields)
            assert 0 < sum(taken) < 600_000
        sent = [TOKENIZER.decode(request.token_ids) for request in engine.requests]
        assert len(sent) == len(asked) * truncate and all("bz" in told for told in sent)

    @pytest.mark.parametrize(
        "fields",
        [
            {"tools": (FunctionTool("f", LONG),)},
            {"tools": (FunctionTool("f", parameters={"anyOf": [{"description": LONG}]}),)},
            {"tools": (FunctionTool("f", parameters={"enum": list(range(100_000))}),)},
            {"tools": (FunctionTool("f", parameters={"enum": [None, True, 0.5] * 30_000}),)},
            {"tools": (FunctionTool("f", parameters={"enum": [{}, []] * 60_000}),)},
            {"messages": (*HI, Message("assistant", (ToolCall("c", LONG, "{}"),)), RESULT)},
            {"messages": (*HI, CALL, Message("tool", (ToolResult("c", LONG),)))},
            {"messages": (Message("user", ()),) * 200_000},
        ],
    )
    async def test_whatever_else_is_far_too_long_is_not_tokenized_either(
        self, fields: dict[str, Any], taken: list[int]
    ) -> None:
        with pytest.raises(ContextLengthExceeded):
            await events_of(ScriptedEngine([], info=info(1000)), **fields)
        assert max(taken, default=0) < 100_000

    @pytest.mark.parametrize(
        "fields",
        [
            {"prompt": LONG},
            {"prompt": "a", "suffix": LONG},
            {"answer_prefix": LONG},
            {"tools": (FunctionTool("f", LONG),)},
            {"tools": (FunctionTool("f", parameters={"description": LONG}),)},
            {"tools": (FunctionTool("f", parameters={"enum": [7, None, {}] * 2000}),)},
            {"tools": (FunctionTool("f", parameters={"anyOf": [[[[[]]]]] * 2000}),)},
            {"messages": (*HI, Message("assistant", (ToolCall("c", LONG, "{}"),)), RESULT)},
            {"messages": (*HI, CALL, Message("tool", (ToolResult("c", LONG),)))},
            {"messages": (Message("user", ()),) * 20_000},
            {"messages": (Message("user", (Text(""),) * 20_000),)},
        ],
    )
    async def test_whatever_is_long_is_rendered_and_tokenized_in_a_thread(
        self, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads = []

        def build(*_: object) -> tuple[Prompt, ...]:
            threads.append(threading.current_thread())
            raise InvalidRequest("enough")

        monkeypatch.setattr(PromptBuilder, "build", build)
        with pytest.raises(InvalidRequest, match="enough"):
            await events_of(ScriptedEngine([]), **fields)
        assert threads and threading.current_thread() not in threads

    async def test_truncation_keeps_the_end_of_a_text(self) -> None:
        engine = ScriptedEngine([], info=info(40))
        fields = {"limits": Limits(max_tokens=4, truncate=True)}
        await events_of(engine, prompt="a" * 100 + "z" * 30, **fields)
        await events_of(engine, prompt="a" * 10_000_000 + "z", **fields)
        assert bytes(engine.requests[0].token_ids) == b"a" * 6 + b"z" * 30
        assert len(engine.requests[1].token_ids) == 36
        assert engine.requests[1].token_ids[-1] == ord("z")

    @pytest.mark.parametrize("context", [2, 3, 40])
    def test_a_truncated_text_keeps_the_token_that_its_model_wants_before_any(
        self, context: int
    ) -> None:
        builder = PromptBuilder(tiny_tokenizer(add_bos=True), None)
        limits = Limits(max_tokens=context // 2, truncate=True)
        request = GenerateRequest(prompt="a" * 100 + "z" * 30, limits=limits)
        (prompt,) = builder.build(request, context, 264)
        room = context - context // 2
        assert prompt.token_ids == (END_OF_TEXT, *b"z" * (room - 1))

    async def sent(self, messages: list[Message], context: int) -> str:
        engine = ScriptedEngine([], info=info(context))
        limits = Limits(max_tokens=8, truncate=True)
        await events_of(engine, messages=tuple(messages), limits=limits)
        sent = engine.requests[0].token_ids
        assert len(sent) <= context - 8
        return b"".join(map(TOKENIZER.token_bytes, sent)).decode()

    async def test_truncation_drops_the_oldest_turns_and_never_the_system_message(self) -> None:
        turns = [Message("system", (Text("S"),))]
        for number in range(20):
            turns.append(Message("user", (Text(f"q{number:02}"),)))
            turns.append(Message("assistant", (Text(f"a{number:02}"),)))
        turns.append(Message("user", (Text("last"),)))
        expected = ChatTemplate(CHATML).render([turns[0], *turns[-5:]])
        fitting = len(TOKENIZER.encode(expected)) + 8
        assert await self.sent(turns, fitting) == expected
        assert await self.sent(turns, fitting + 1) == expected
        shorter = ChatTemplate(CHATML).render([turns[0], *turns[-3:]])
        assert await self.sent(turns, fitting - 1) == shorter

    async def test_truncation_keeps_the_end_of_a_last_message_that_is_too_long(self) -> None:
        talk = [Message("system", (Text("S"),)), Message("user", (Text("é" * 500 + "end"),))]
        sent = await self.sent(talk, 100)
        assert "system\nS<|im_end|>" in sent and "éend<|im_end|>" in sent and "�" not in sent
        assert sent.count("é") >= 10

    async def test_a_system_message_that_is_too_long_is_refused(self) -> None:
        for roles in (("system",), ("system", "user")):
            talk = [Message(role, (Text("b" * 200),)) for role in roles]  # type: ignore[arg-type]
            with pytest.raises(ContextLengthExceeded):
                await self.sent(talk, 100)

    async def test_counting_stops_where_no_context_reaches(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.generation.generator.MOST_COUNTED_TOKENS", 300)
        counting = generator(ScriptedEngine([], info=info(200)))
        assert await counting.count(GenerateRequest(prompt="b" * 250)) == 250
        with pytest.raises(ContextLengthExceeded, match="more than 300 tokens, the most"):
            await counting.count(GenerateRequest(prompt="b" * 301))
