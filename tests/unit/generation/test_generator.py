from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from scripted_engine import INFO, RowError, ScriptedEngine
from tiny_text import CHATML, END_OF_TEXT, IM_END, tiny_data, tiny_template, tiny_tokenizer

from penstock import __version__
from penstock.base.errors import ContextLengthExceeded, EngineFault, InvalidRequest, Overloaded
from penstock.dialog import (
    Constraint,
    Event,
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    PartEnded,
    RunEnded,
    RunStarted,
    Sampling,
    Text,
    TextDelta,
    ToolCall,
    ToolPolicy,
    ToolResult,
    TurnEnded,
)
from penstock.dialog.fold import Answer, fold
from penstock.engine.guide import TOO_COMPLEX
from penstock.engine.types import EngineInfo, TokenDelta
from penstock.generation import Generator
from penstock.generation.fit import Prompt
from penstock.generation.prompt import PromptBuilder
from penstock.models.tokenizer_data import TextParts
from penstock.text import ChatTemplate, Tokenizer

TOKENIZER = tiny_tokenizer()
TOOLS = (FunctionTool("f"),)
HI = (Message("user", (Text("hi"),)),)
CALL = Message("assistant", (ToolCall("c", "f", "{}"),))
RESULT = Message("tool", (ToolResult("c", "done"),))
LONG = "b" * 400_000


def ids(text: str) -> list[int]:
    return list(text.encode())


def info(context_tokens: int) -> EngineInfo:
    return EngineInfo("scripted", context_tokens, 264, 8, 128, 16, 0, "fp")


def generator(engine: ScriptedEngine, defaults: Sampling | None = None) -> Generator:
    return Generator(engine, TOKENIZER, tiny_template(), defaults)


async def events_of(engine: ScriptedEngine, **fields: Any) -> list[Event]:
    fields.setdefault("messages", HI if "prompt" not in fields else None)
    return [event async for event in generator(engine).run(GenerateRequest(**fields))]


async def answer_of(engine: ScriptedEngine, **fields: Any) -> Answer:
    return fold(await events_of(engine, **fields))


def text(answer: Answer, choice: int = 0) -> str:
    (part,) = answer.choices[choice].parts
    assert isinstance(part, Text)
    return part.text


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that were tokenized since."""
    encode, lengths = Tokenizer.encode, []

    def counted(self: Tokenizer, text: str, *, add_special: bool = False) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, add_special=add_special)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    return lengths


async def test_a_chat_is_rendered_sent_and_streamed() -> None:
    engine = ScriptedEngine([*ids("héy"), IM_END, *ids("never")], cached_tokens=3)
    events = await events_of(engine)
    rendered = ChatTemplate(CHATML).render(HI)
    assert engine.requests[0].token_ids == tuple(TOKENIZER.encode(rendered))
    assert isinstance(events[0], RunStarted) and events[0].model == "scripted"
    assert events[0].fingerprint == f"penstock-{__version__}-fp_scripted"
    assert events[0].prompt_tokens == len(engine.requests[0].token_ids)
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["h", "é", "y"]
    assert isinstance(events[-1], RunEnded) and events[-1].status == "completed"
    usage = events[-1].usage
    assert (usage.completion_tokens, usage.cached_tokens) == (4, 3)
    assert usage.prompt_time_s >= 0 and usage.completion_time_s >= 0


async def test_a_prompt_is_sent_as_it_is() -> None:
    engine = ScriptedEngine([])
    await events_of(engine, prompt="<|im_start|>the")
    await events_of(engine, prompt=(5, 6))
    assert [r.token_ids for r in engine.requests] == [(257, 260), (5, 6)]


async def test_an_answer_goes_on_from_what_was_begun() -> None:
    engine = ScriptedEngine([*ids("B)"), IM_END])
    answer = await answer_of(engine, messages=HI, begun="It is (")
    assert text(answer) == "B)"
    sent = b"".join(map(TOKENIZER.token_bytes, engine.requests[0].token_ids)).decode()
    assert sent.endswith("<|im_start|>assistant\nIt is (")
    await answer_of(engine, messages=HI, begun="a<|im_end|>b")
    assert IM_END not in engine.requests[1].token_ids[-8:]
    with pytest.raises(InvalidRequest):
        await answer_of(engine, prompt="x", begun="y")


async def test_prompts_are_counted_as_they_would_be_sent() -> None:
    engine = ScriptedEngine([1])
    request = GenerateRequest(messages=HI)
    counted = await generator(engine).count(request)
    assert engine.requests == []
    await answer_of(engine, messages=HI)
    assert counted == len(engine.requests[0].token_ids)
    assert await generator(engine).count(GenerateRequest(prompts=("ab", (5, 6, 7)))) == 5


async def test_prompts_that_no_context_holds_are_counted_too() -> None:
    engine = ScriptedEngine([1], info=info(64))
    long = (Message("user", (Text("ab" * 100_000),)),)
    assert await generator(engine).count(GenerateRequest(messages=long)) > 200_000
    with pytest.raises(InvalidRequest):
        await generator(engine).count(GenerateRequest(messages=()))


async def test_an_empty_prompt_starts_from_the_beginning_of_text() -> None:
    engine = ScriptedEngine([])
    await events_of(engine, prompt="")
    assert engine.requests[0].token_ids == (END_OF_TEXT,)


async def test_an_answer_without_tokens_is_an_empty_text_part() -> None:
    answer = await answer_of(ScriptedEngine([IM_END]))
    assert text(answer) == "" and answer.choices[0].finish == "stop"


async def test_the_token_limit_ends_with_length_and_incomplete() -> None:
    answer = await answer_of(ScriptedEngine(ids("abcdef")), limits=Limits(max_tokens=3))
    assert text(answer) == "abc"
    assert answer.choices[0].finish == "length" and answer.status == "incomplete"


async def test_without_a_limit_the_context_is_the_limit() -> None:
    engine = ScriptedEngine(ids("a" * 50), info=info(40))
    answer = await answer_of(engine, prompt="b" * 10)
    assert len(text(answer)) == 30 and answer.choices[0].finish == "length"


async def test_a_limit_beyond_the_context_is_clamped() -> None:
    engine = ScriptedEngine([], info=info(40))
    await events_of(engine, prompt="b" * 10, limits=Limits(max_tokens=1000))
    assert engine.requests[0].max_tokens == 30


async def test_ignore_eos_goes_on_past_the_end() -> None:
    engine = ScriptedEngine([*ids("a"), IM_END, *ids("b")])
    answer = await answer_of(engine, ignore_eos=True)
    assert text(answer) == "ab" and answer.usage.completion_tokens == 3


async def test_a_stop_string_across_tokens_is_never_shown_and_aborts() -> None:
    engine = ScriptedEngine([*ids("one END"), *ids(" more")])
    events = await events_of(engine, stop=(" END", "zzz"))
    answer = fold(events)
    assert text(answer) == "one"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "one"
    assert answer.choices[0].stop_sequence == " END"
    assert answer.choices[0].finish == "stop"
    assert engine.aborted and not engine.active
    assert answer.usage.completion_tokens == len("one END")


async def test_a_stop_string_in_the_last_token_is_a_stop_and_not_the_length() -> None:
    answer = await answer_of(ScriptedEngine(ids("ab")), stop=("b",), limits=Limits(max_tokens=2))
    assert answer.choices[0].finish == "stop" and text(answer) == "a"


async def test_what_was_held_back_is_shown_at_the_end() -> None:
    answer = await answer_of(ScriptedEngine([*ids("ab"), 0xF0, 0x9F]), stop=("abc", "�x"))
    assert text(answer) == "ab�" and answer.choices[0].stop_sequence is None


async def test_choices_have_their_own_seeds_and_do_not_wait_for_each_other() -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(
        lambda r: [*ids("slow"), gate, *ids("er")] if r is engine.requests[0] else ids("fast")
    )
    request = GenerateRequest(messages=HI, n=3, sampling=Sampling(seed=7))
    events: list[Event] = []
    async for event in generator(engine).run(request):
        events.append(event)
        if sum(isinstance(e, TurnEnded) for e in events) == 2:
            gate.set()
    answer = fold(events)
    assert [text(answer, i) for i in range(3)] == ["slower", "fast", "fast"]
    assert len({r.seed for r in engine.requests}) == 3 and engine.requests[0].seed == 7
    assert answer.usage.completion_tokens == 14
    assert answer.usage.prompt_tokens == len(engine.requests[0].token_ids)


async def test_a_request_of_many_sequences_leaves_the_engine_a_short_queue() -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine([*ids("a"), gate, *ids("b")])
    prompts = ((1,), (2,), (3,))
    answering = asyncio.create_task(answer_of(engine, messages=None, prompts=prompts, n=16))
    while len(engine.active) < 2 * engine.info.max_seqs:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(engine.requests) == 2 * engine.info.max_seqs
    gate.set()
    answer = await answering
    assert [text(answer, index) for index in range(48)] == ["ab"] * 48


async def test_seeds_are_random_unless_asked_for() -> None:
    engine = ScriptedEngine([])
    for _ in range(3):
        await events_of(engine)
    assert len({r.seed for r in engine.requests}) == 3
    assert all(0 <= r.seed < 2**63 for r in engine.requests)


async def test_sampling_is_the_request_s_over_the_model_s() -> None:
    engine = ScriptedEngine([])
    defaults = Sampling(temperature=0.6, top_k=20, top_p=0.9)
    for wanted in (
        Sampling(),
        Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.1),
        Sampling(top_k=5, top_p=0.0),
    ):
        request = GenerateRequest(messages=HI, sampling=wanted)
        _ = [event async for event in generator(engine, defaults).run(request)]
    assert [r.sampling for r in engine.requests] == [
        Sampling(temperature=0.6, top_k=20, top_p=0.9),
        Sampling(temperature=0.0, min_p=0.1),
        Sampling(temperature=0.0, top_k=5),
    ]
    await events_of(engine)
    assert engine.requests[-1].sampling == Sampling(temperature=1.0)


async def test_logprobs_go_with_the_text_they_belong_to() -> None:
    engine = ScriptedEngine([*ids("aé"), IM_END])
    events = await events_of(engine, top_logprobs=2)
    deltas = [e for e in events if isinstance(e, TextDelta)]
    assert [(d.text, [p.token_bytes for p in d.logprobs]) for d in deltas] == [
        ("a", [b"a"]),
        ("é", [b"\xc3", b"\xa9"]),
    ]
    first = deltas[0].logprobs[0]
    assert first.logprob == -0.5
    assert first.top == ((0x61, b"a", -0.5), (0x62, b"b", -1.5))


async def test_logprobs_of_a_stop_string_are_cut_with_it() -> None:
    answer = await answer_of(ScriptedEngine(ids("a--b")), top_logprobs=0, stop=("--",))
    assert [p.token_bytes for p in answer.choices[0].logprobs] == [b"a"]


async def test_tokens_without_text_keep_their_logprobs() -> None:
    engine = ScriptedEngine([0xF0, 0x9F])
    answer = await answer_of(engine, top_logprobs=0)
    assert text(answer) == "�" and len(answer.choices[0].logprobs) == 2
    engine = ScriptedEngine([TokenDelta(END_OF_TEXT, -1.0)])
    answer = await answer_of(engine, top_logprobs=0, ignore_eos=True)
    assert text(answer) == "" and len(answer.choices[0].logprobs) == 1


async def test_echo_puts_the_prompt_before_each_answer() -> None:
    events = await events_of(ScriptedEngine(ids("!")), prompt="the", echo=True, n=2)
    answer = fold(events)
    assert [text(answer, i) for i in range(2)] == ["the!", "the!"]
    ended = [e for e in events if isinstance(e, PartEnded)]
    assert len(ended) == 2
    assert text(await answer_of(ScriptedEngine([]), prompt=(260, 0x20), echo=True)) == "the "


async def test_several_tokens_of_one_chunk_make_one_delta() -> None:
    events = await events_of(ScriptedEngine([(*ids("ab"), 0xC3), (0xA9, *ids("c"))]))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["ab", "éc"]


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
            {"begun": LONG},
            {"tools": (FunctionTool("f", LONG),)},
            {"tools": (FunctionTool("f", parameters={"description": LONG}),)},
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


class TestEnds:
    async def test_a_grammar_that_grows_too_complex_is_the_clients_fault(self) -> None:
        engine = ScriptedEngine([RowError(TOO_COMPLEX)])
        with pytest.raises(InvalidRequest, match="too complex to follow; make it simpler") as told:
            await answer_of(engine)
        assert told.value.field == "grammar"

    async def test_closing_early_aborts_every_choice(self) -> None:
        for n in (1, 3):
            gate = asyncio.Event()
            engine = ScriptedEngine([*ids("ab"), gate])
            stream = generator(engine).run(GenerateRequest(messages=HI, n=n))
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
            await stream.aclose()
            assert not engine.active
            assert len(engine.aborted) + len(engine.finished) == len(engine.requests)
            assert engine.aborted

    async def test_cancelling_the_reader_aborts_every_choice(self) -> None:
        gate, seen = asyncio.Event(), asyncio.Event()
        engine = ScriptedEngine([*ids("a"), gate])

        async def read() -> None:
            async for event in generator(engine).run(GenerateRequest(messages=HI, n=2)):
                if isinstance(event, TextDelta):
                    seen.set()

        task = asyncio.create_task(read())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not engine.active and len(engine.aborted) == len(engine.requests)

    async def test_a_refusal_of_the_engine_is_raised(self) -> None:
        for n in (1, 2):
            with pytest.raises(Overloaded):
                await events_of(ScriptedEngine([Overloaded("full")]), n=n)

    async def test_a_failing_row_fails_the_run_and_ends_its_other_choices(self) -> None:
        gate = asyncio.Event()
        engine = ScriptedEngine(
            lambda r: [*ids("a"), gate] if r is engine.requests[0] else [RowError("nan")]
        )
        with pytest.raises(EngineFault, match="failed this request"):
            await events_of(engine, n=2)
        assert not engine.active and len(engine.aborted) == 1


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("messages", {"messages": None}),
        ("messages", {"messages": HI, "prompt": "x"}),
        ("messages", {"messages": ()}),
        ("prompt", {"prompt": ()}),
        ("prompt", {"prompt": (INFO.vocab_size,)}),
        ("prompt", {"prompt": (-1,)}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("max_tokens", {"limits": Limits(max_tokens=0)}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("top_logprobs", {"top_logprobs": -1}),
        ("stop", {"stop": ("x",) * 65}),
        ("stop[1]", {"stop": ("x", "")}),
        ("stop[0]", {"stop": ("x" * 5000,)}),
        ("temperature", {"sampling": Sampling(temperature=-0.1)}),
        ("temperature", {"sampling": Sampling(temperature=float("nan"))}),
        ("temperature", {"sampling": Sampling(temperature=2.1)}),
        ("top_k", {"sampling": Sampling(top_k=-2)}),
        ("top_p", {"sampling": Sampling(top_p=1.1)}),
        ("min_p", {"sampling": Sampling(min_p=-1.0)}),
        ("presence_penalty", {"sampling": Sampling(presence_penalty=2.5)}),
        ("frequency_penalty", {"sampling": Sampling(frequency_penalty=-3.0)}),
        ("repetition_penalty", {"sampling": Sampling(repetition_penalty=float("inf"))}),
        ("repetition_penalty", {"sampling": Sampling(repetition_penalty=0.0)}),
        ("dry_multiplier", {"sampling": Sampling(dry_multiplier=-0.5)}),
        ("dry_base", {"sampling": Sampling(dry_base=0.9)}),
        ("dry_allowed_length", {"sampling": Sampling(dry_allowed_length=-1)}),
        ("dry_sequence_breakers", {"sampling": Sampling(dry_sequence_breakers=("x",) * 65)}),
        ("dry_sequence_breakers[1]", {"sampling": Sampling(dry_sequence_breakers=("x", ""))}),
        ("dry_sequence_breakers[0]", {"sampling": Sampling(dry_sequence_breakers=("x" * 41,))}),
        ("logit_bias", {"sampling": Sampling(logit_bias={49152: 1.0})}),
        ("logit_bias", {"sampling": Sampling(logit_bias={-1: 1.0})}),
        ("logit_bias", {"sampling": Sampling(logit_bias={1: 100.5})}),
        ("adapter", {"adapter": "mine"}),
        ("tools", {"tool_policy": ToolPolicy("required")}),
        ("tool_choice", {"tools": TOOLS, "tool_policy": ToolPolicy("auto", ("g",))}),
        ("best_of", {"n": 3, "best_of": 2}),
        ("suffix", {"suffix": "x"}),
        ("suffix", {"prompt": "x", "suffix": "y"}),
        ("response_format", {"constraint": Constraint("json_schema", '{"not": {}}')}),
        ("grammar", {"constraint": Constraint("regex", "(")}),
        ("echo", {"echo": True}),
        ("max_tokens", {"prompt": "x", "limits": Limits(max_tokens=0)}),
    ],
)
async def test_what_is_out_of_range_or_not_served_is_refused_by_name(
    field: str, fields: dict[str, Any]
) -> None:
    engine = ScriptedEngine(ids("a"))
    with pytest.raises(InvalidRequest) as caught:
        await events_of(engine, **fields)
    assert caught.value.field == field
    assert not engine.requests


async def test_neutral_values_ask_the_engine_for_nothing() -> None:
    neutral = Sampling(
        presence_penalty=0.0,
        frequency_penalty=0,
        repetition_penalty=1.0,
        dry_multiplier=0.0,
        logit_bias={},
    )
    engine = ScriptedEngine(ids("a"))
    assert text(await answer_of(engine, sampling=neutral)) == "a"
    assert engine.requests[0].sampling == Sampling(temperature=1.0)


async def test_bias_and_penalties_reach_the_engine_resolved() -> None:
    engine = ScriptedEngine([])
    asked = Sampling(
        presence_penalty=0.5,
        frequency_penalty=-2.0,
        repetition_penalty=1.25,
        logit_bias={104: -100.0},
        dry_multiplier=0.8,
        dry_sequence_breakers=("the",),
    )
    await events_of(engine, sampling=asked)
    sent = engine.requests[0].sampling
    assert (sent.presence_penalty, sent.frequency_penalty) == (0.5, -2.0)
    assert (sent.repetition_penalty, sent.logit_bias) == (1.25, {104: -100.0})
    assert (sent.dry_multiplier, sent.dry_base, sent.dry_allowed_length) == (0.8, 1.75, 2)
    assert (260,) in sent.dry_breakers and sent.dry_sequence_breakers is None


def parts(chat_template: str | None, mark: str = "<|im_start|>") -> TextParts:
    tokens = [mark if token == "<|im_start|>" else token for token in tiny_data().tokens]
    data = tiny_data(tokens=tokens)
    return TextParts("m", "f", data, chat_template, None, None, (), Sampling(), 128, 264)


@pytest.mark.parametrize("template", [None, "{% for %}", "{{ raise_exception('no') }}", "shows it"])
async def test_a_template_that_fits_the_tokens_stands_in_for_one_that_does_not_work(
    template: str | None,
) -> None:
    engine = ScriptedEngine([])
    loaded = Generator.load(engine, parts(template))
    _ = [event async for event in loaded.run(GenerateRequest(messages=HI))]
    expected = TOKENIZER.encode(ChatTemplate(CHATML).render(HI))
    assert engine.requests[0].token_ids == tuple(expected)


@pytest.mark.parametrize("template", [None, "{% for %}"])
async def test_without_a_usable_template_completions_still_work(template: str | None) -> None:
    engine = ScriptedEngine(ids("a"))
    loaded = Generator.load(engine, parts(template, mark="<|other|>"))
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        _ = [event async for event in loaded.run(GenerateRequest(messages=HI))]
    assert caught.value.code == "no_chat_template"
    request = GenerateRequest(prompt="x")
    assert text(fold([event async for event in loaded.run(request)])) == "a"
