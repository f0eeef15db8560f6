"""Reasoning and calls as events, over the scripted engine."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_generator import run

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    ArgumentsDelta,
    Constraint,
    Event,
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    ReasoningPolicy,
    Text,
    TextDelta,
    ToolCall,
    ToolPolicy,
)
from penstock.dialog.fold import Answer, fold
from penstock.engine.types import TokenDelta
from penstock.generation import Generator
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax, ReasoningSyntax
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_template, tiny_tokenizer
from tests.support.model_output_examples import EXAMPLES, TOOLS
from tests.support.scripted_engine import ScriptedEngine

TOKENIZER = tiny_tokenizer()
HI = (Message("user", (Text("hi"),)),)
THINK = ReasoningSyntax("<think>", "</think>")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@cache
def generator_of(syntax: str) -> tuple[ScriptedEngine, Generator]:
    """One for all tests: each has a process in which grammars are tried."""
    engine = ScriptedEngine([])
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES[syntax], THINK)
    return engine, Generator(engine, TOKENIZER, tiny_template(), syntax=answer_syntax)


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    yield
    for syntax in TOOL_SYNTAXES:
        generator_of(syntax)[1].close()
    generator_of.cache_clear()


async def events_of(script: Any, syntax: str = "hermes", **fields: Any) -> list[Event]:
    engine, generator = generator_of(syntax)
    engine.play(list(script.encode()) if isinstance(script, str) else script)
    fields.setdefault("tools", TOOLS)
    if "prompt" not in fields:
        fields.setdefault("messages", HI)
    return [event async for event in run(generator, GenerateRequest(**fields))]


async def answer_of(script: Any, syntax: str = "hermes", **fields: Any) -> Answer:
    return fold(await events_of(script, syntax, **fields))


def check_invariants(events: list[Event]) -> None:
    """Parts start and end once, one after another; their deltas concatenate to them."""
    deltas: dict[int, str] = {}
    open_part: int | None = None
    for event in events:
        match event:
            case PartStarted():
                assert open_part is None and event.part == len(deltas)
                open_part = event.part
                deltas[event.part] = ""
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                assert event.part == open_part
                deltas[event.part] += event.text
            case PartEnded():
                assert event.part == open_part
                value = event.value
                whole = value.arguments if isinstance(value, ToolCall) else value.text
                assert deltas[event.part] == whole
                open_part = None
            case _:
                pass
    assert open_part is None and deltas


async def test_a_call_is_a_part_and_ends_the_turn_with_tool_calls() -> None:
    answer = await answer_of("I look.\n" + CALL)
    text, call = answer.choices[0].parts
    assert text == Text("I look.")
    assert isinstance(call, ToolCall) and call.id.startswith("call_")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert answer.choices[0].finish == "tool_calls"


async def test_reasoning_is_a_part_and_is_counted() -> None:
    answer = await answer_of("<think>ab</think>c", tools=())
    assert answer.choices[0].parts == [Reasoning("ab"), Text("c")]
    assert answer.choices[0].finish == "stop"
    # the tag that opens it counts from its last letter on, the one that ends it up to it
    assert answer.usage.reasoning_tokens == 1 + 2 + len("</think")


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_cut_off_call_ends_with_length(parallel: bool) -> None:
    limits = Limits(max_tokens=len(CALL) - 18)
    answer = await answer_of(CALL, limits=limits, tool_policy=ToolPolicy(parallel=parallel))
    (call,) = answer.choices[0].parts
    assert isinstance(call, ToolCall) and answer.choices[0].finish == "length"


@pytest.mark.parametrize("n", [1, 2])
async def test_an_answer_ends_with_its_first_call_where_calls_may_not_be_parallel(n: int) -> None:
    engine = ScriptedEngine(list((CALL + "\n" + CALL + "and on").encode()))
    generator = Generator(
        engine, TOKENIZER, tiny_template(), syntax=AnswerSyntax(TOOL_SYNTAXES["hermes"], None)
    )
    request = GenerateRequest(messages=HI, tools=TOOLS, n=n, tool_policy=ToolPolicy(parallel=False))
    answer = fold([event async for event in run(generator, request)])
    for choice in answer.choices:
        assert [type(part) for part in choice.parts] == [ToolCall]
        assert choice.finish == "tool_calls"
    assert len(engine.aborted) == n
    both = await answer_of(CALL + "\n" + CALL)
    assert [type(part) for part in both.choices[0].parts] == [ToolCall, ToolCall]


async def test_an_answer_prefix_is_refused_for_models_with_channels() -> None:
    with pytest.raises(InvalidRequest, match="cannot continue an answer prefix"):
        await answer_of("x", "harmony", answer_prefix="So")


async def test_only_the_first_of_several_calls_in_a_chunk_counts() -> None:
    chunk = tuple((CALL + "\n" + CALL).encode())
    answer = await answer_of([chunk], tool_policy=ToolPolicy(parallel=False))
    assert [type(part) for part in answer.choices[0].parts] == [ToolCall]
    assert answer.choices[0].finish == "tool_calls"


async def test_no_call_is_made_where_none_is_allowed() -> None:
    engine = ScriptedEngine(list(CALL.encode()))
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"], None)
    generator = Generator(engine, TOKENIZER, tiny_template(), syntax=answer_syntax)
    request = GenerateRequest(messages=HI, tools=TOOLS, tool_policy=ToolPolicy("none"))
    answer = fold([event async for event in run(generator, request)])
    assert answer.choices[0].parts == [Text(CALL)]
    assert b"get_weather" not in bytes(t for t in engine.requests[0].token_ids if t < 256)


async def test_functions_outside_the_allowed_ones_are_not_called() -> None:
    policy = ToolPolicy("auto", ("ping",))
    answer = await answer_of(CALL, tool_policy=policy)
    assert answer.choices[0].parts == [Text(CALL)] and answer.choices[0].finish == "stop"


async def test_stop_strings_are_looked_for_in_the_answer_only() -> None:
    answer = await answer_of("<think>a END</think>b END c", stop=("END",), tools=())
    assert answer.choices[0].parts == [Reasoning("a END"), Text("b ")]
    assert answer.choices[0].stop_sequence == "END"
    call = CALL.replace("Oslo", "END")
    answer = await answer_of("a EN" + call, stop=("END",))
    assert answer.choices[0].parts[0] == Text("a EN")
    assert answer.choices[0].finish == "tool_calls"


async def test_logprobs_are_of_the_answer_only() -> None:
    answer = await answer_of("<think>ab</think>cd" + CALL, top_logprobs=0)
    assert [p.token_bytes for p in answer.choices[0].logprobs] == [b"c", b"d"]


async def test_an_answer_that_is_nothing_but_reasoning_has_no_text() -> None:
    answer = await answer_of("<think>ab", tools=())
    assert answer.choices[0].parts == [Reasoning("ab")]


async def test_completions_have_no_channels() -> None:
    answer = await answer_of("<think>ab</think>", prompt="x", tools=())
    assert answer.choices[0].parts == [Text("<think>ab</think>")]


@pytest.mark.parametrize("syntax", sorted(TOOL_SYNTAXES))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**20), stop=st.sampled_from([(), ("a",), ("}\n", '": '), ("\n",)]))
async def test_events_of_a_stream_keep_the_invariants(
    syntax: str, seed: int, stop: tuple[str, ...]
) -> None:
    draw = random.Random(seed)
    text, _ = draw.choice(EXAMPLES[syntax])
    data = list(("<think>a\nb</think>Well. " * draw.randint(0, 1) + text + " Done").encode())
    steps: list[Any] = []
    while data:
        count = draw.randint(1, 9)
        steps.append(tuple(data[:count]))
        del data[:count]
    events = await events_of([*steps, IM_END], syntax, stop=stop)
    check_invariants(events)
    one_by_one = await events_of([t for step in steps for t in step], syntax, stop=stop)
    check_invariants(one_by_one)
    assert without_ids(fold(events)) == without_ids(fold(one_by_one))


def without_ids(answer: Answer) -> list[Any]:
    (choice,) = answer.choices
    parts = [(p.name, p.arguments) if isinstance(p, ToolCall) else p for p in choice.parts]
    return [parts, choice.finish, choice.stop_sequence, answer.usage.reasoning_tokens]


class TestGrammars:
    async def grammar_of(self, syntax: str = "hermes", **fields: Any) -> str | None:
        engine = ScriptedEngine([IM_END])
        answer_syntax = AnswerSyntax(TOOL_SYNTAXES[syntax], THINK)
        generator = Generator(engine, TOKENIZER, tiny_template(), syntax=answer_syntax)
        request = GenerateRequest(messages=HI, **fields)
        _ = [event async for event in run(generator, request)]
        grammar = engine.requests[0].constraint
        return grammar.value if grammar is not None else None

    async def test_calls_that_may_be_are_bound_from_where_they_begin(self) -> None:
        engine = ScriptedEngine([IM_END])
        answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"], THINK)
        generator = Generator(engine, TOKENIZER, tiny_template(), syntax=answer_syntax)
        request = GenerateRequest(messages=HI, tools=TOOLS)
        _ = [event async for event in run(generator, request)]
        generator.close()
        grammar = engine.requests[0].constraint
        assert grammar is not None and grammar.triggers is not None
        assert '"get_weather"' in grammar.triggers.texts
        assert (
            grammar.triggers.reasoning_close == "</think>" and not grammar.triggers.reasoning_opened
        )

    async def test_functions_that_cannot_be_bound_are_free(self) -> None:
        endless = {"type": "object", "properties": {"a": {"type": "strin"}}}
        tools = (FunctionTool("f", None, {"pattern": "(?!x)", "not": {}} | endless), TOOLS[0])
        grammar = await self.grammar_of(tools=tools)
        assert grammar is not None and "city" in grammar and not re.search(r"strin\W", grammar)

    async def test_no_call_is_bound_where_none_is_allowed(self) -> None:
        none = ToolPolicy("none")
        assert await self.grammar_of(tools=TOOLS, tool_policy=none) is None

    async def test_required_calls_are_bound_to_the_allowed_functions(self) -> None:
        grammar = await self.grammar_of(tools=TOOLS, tool_policy=ToolPolicy("required"))
        assert grammar is not None and "get_weather" in grammar and "ping" in grammar
        named = ToolPolicy("required", ("ping",))
        grammar = await self.grammar_of(tools=TOOLS, tool_policy=named)
        assert grammar is not None and "get_weather" not in grammar and "ping" in grammar

    async def test_a_strict_function_binds_calls_that_may_be(self) -> None:
        strict = FunctionTool("f", None, {"type": "object"}, strict=True)
        assert await self.grammar_of(tools=(strict,)) is not None

    async def test_reasoning_is_not_bound_unless_it_is_off(self) -> None:
        constraint = Constraint("regex", "[0-9]+")
        grammar = await self.grammar_of(constraint=constraint)
        assert grammar is not None and "</think>" in grammar
        off = ReasoningPolicy(enabled=False)
        grammar = await self.grammar_of(constraint=constraint, reasoning=off)
        assert grammar is not None and "</think>" not in grammar

    async def test_a_schema_that_cannot_be_kept_is_an_error_only_if_strict(self) -> None:
        parameters = {"type": "object", "properties": {"a": {"type": "strin"}}}
        loose = FunctionTool("f", None, parameters)
        policy = ToolPolicy("required")
        grammar = await self.grammar_of(tools=(loose, TOOLS[0]), tool_policy=policy)
        assert grammar is not None
        assert re.search(r"city", grammar) and not re.search(r"strin\W", grammar)
        strict = FunctionTool("f", None, parameters, strict=True)
        with pytest.raises(InvalidRequest) as caught:
            await self.grammar_of(tools=(TOOLS[0], strict), tool_policy=policy)
        assert caught.value.field == "tools[1].function.parameters"

    async def test_a_loose_function_loses_only_what_cannot_be_kept(self) -> None:
        items = {"type": "string", "pattern": "^(?!x)", "enum": ["kept"]}
        parameters = {"type": "object", "properties": {"a": {"type": "array", "items": items}}}
        policy = ToolPolicy("required")
        for syntax in ("hermes", "qwen3_coder", "pythonic"):
            tools = (FunctionTool("f", None, parameters),)
            grammar = await self.grammar_of(syntax, tools=tools, tool_policy=policy)
            assert grammar is not None and "kept" in grammar and "(?!x)" not in grammar

    async def test_a_loose_function_is_never_the_error(self) -> None:
        inner = {"type": "integer", "minimum": 5, "maximum": 3}
        parameters = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
        tools = (FunctionTool("f", None, parameters),)
        policy = ToolPolicy("required")
        assert await self.grammar_of("pythonic", tools=tools, tool_policy=policy) is not None

    async def test_a_form_of_calls_that_cannot_keep_a_strict_schema_names_it(self) -> None:
        parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "b"}}}
        strict = FunctionTool("f", None, parameters, strict=True)
        with pytest.raises(InvalidRequest, match="/properties/a: pattern cannot") as caught:
            await self.grammar_of("qwen3_coder", tools=(TOOLS[0], strict))
        assert caught.value.field == "tools[1].function.parameters"
        assert await self.grammar_of(tools=(strict,)) is not None


class TestSeveralPrompts:
    async def test_choices_are_numbered_prompt_by_prompt(self) -> None:
        engine = ScriptedEngine(lambda r: [*r.token_ids, r.seed % 2**63 and 0x21])
        generator = Generator(engine, TOKENIZER)
        request = GenerateRequest(prompts=("ab", (0x63,)), n=2, echo=True)
        answer = fold([event async for event in run(generator, request)])
        texts = ["".join(p.text for p in c.parts if isinstance(p, Text)) for c in answer.choices]
        assert texts == ["abab!", "abab!", "cc!", "cc!"]
        assert [c.index for c in answer.choices] == [0, 1, 2, 3]
        assert len({r.seed for r in engine.requests}) == 4
        assert answer.usage.prompt_tokens == 3 and answer.usage.completion_tokens == 10

    async def test_the_likeliest_of_several_are_given(self) -> None:
        def script(request: Any) -> list[Any]:
            index = engine.requests.index(request)
            return [TokenDelta(0x61 + index, [-3.0, -0.5, -2.0, -1.0][index])]

        engine = ScriptedEngine(script)
        generator = Generator(engine, TOKENIZER)
        request = GenerateRequest(prompt="x", n=2, best_of=4)
        answer = fold([event async for event in run(generator, request)])
        assert [c.parts for c in answer.choices] == [[Text("b")], [Text("d")]]
        assert [c.index for c in answer.choices] == [0, 1]
        assert all(not c.logprobs for c in answer.choices)
        assert answer.usage.completion_tokens == 4
