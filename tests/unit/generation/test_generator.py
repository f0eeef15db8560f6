"""One call from request to events: prompts, ends, stops, choices, log-probabilities."""

from __future__ import annotations

import asyncio

import pytest
from scripted_generator import HI, TOKENIZER, answer_of, events_of, generator, ids, info, run, text

from penstock import __version__
from penstock.base.errors import EngineFault, InvalidRequest, Overloaded
from penstock.dialog import (
    Event,
    GenerateRequest,
    Limits,
    Message,
    PartEnded,
    RunEnded,
    RunStarted,
    Sampling,
    Text,
    TextDelta,
    TurnEnded,
)
from penstock.dialog.fold import fold
from penstock.engine.types import TokenDelta
from penstock.grammar.guides import TOO_COMPLEX
from penstock.text import ChatTemplate
from tests.support.checkpoints.tiny_tokenizer import CHATML, END_OF_TEXT, IM_END
from tests.support.scripted_engine import RowError, ScriptedEngine


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


async def test_an_answer_continues_its_prefix() -> None:
    engine = ScriptedEngine([*ids("B)"), IM_END])
    answer = await answer_of(engine, messages=HI, answer_prefix="It is (")
    assert text(answer) == "B)"
    sent = b"".join(map(TOKENIZER.token_bytes, engine.requests[0].token_ids)).decode()
    assert sent.endswith("<|im_start|>assistant\nIt is (")
    await answer_of(engine, messages=HI, answer_prefix="a<|im_end|>b")
    assert IM_END not in engine.requests[1].token_ids[-8:]
    with pytest.raises(InvalidRequest):
        await answer_of(engine, prompt="x", answer_prefix="y")


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


async def test_the_salt_of_the_prefix_cache_reaches_the_engine() -> None:
    engine = ScriptedEngine(ids("a"))
    await answer_of(engine, cache_salt="é", n=2)
    await answer_of(engine)
    assert [request.cache_salt for request in engine.requests] == ["é".encode()] * 2 + [b""]


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


async def test_held_back_text_is_shown_at_the_end() -> None:
    answer = await answer_of(ScriptedEngine([*ids("ab"), 0xF0, 0x9F]), stop=("abc", "�x"))
    assert text(answer) == "ab" and answer.choices[0].stop_sequence is None


async def test_choices_have_their_own_seeds_and_do_not_wait_for_each_other() -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(
        lambda r: [*ids("slow"), gate, *ids("er")] if r is engine.requests[0] else ids("fast")
    )
    request = GenerateRequest(messages=HI, n=3, sampling=Sampling(seed=7))
    events: list[Event] = []
    async for event in run(generator(engine), request):
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
    while len(engine.active) < 2 * engine.info.max_num_seqs:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(engine.requests) == 2 * engine.info.max_num_seqs
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
        _ = [event async for event in run(generator(engine, defaults), request)]
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
    assert text(answer) == "" and len(answer.choices[0].logprobs) == 2
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
            stream = run(generator(engine), GenerateRequest(messages=HI, n=n))
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
            async for event in run(generator(engine), GenerateRequest(messages=HI, n=2)):
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
