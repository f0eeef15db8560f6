"""Transcription of recordings: windows, segments, fallback, silence, instructions, events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.dialog import (
    Constraint,
    GenerateRequest,
    Image,
    Limits,
    Message,
    RunEnded,
    RunFailed,
    RunStarted,
    Sampling,
    Text,
    TextDelta,
    ToolPolicy,
    TurnEnded,
)
from tests.support.speech.scripted_speech import Speech, all_events, recording, request
from tests.support.speech.whisper_folders import random_whisper


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def speech(folder: Path) -> Speech:
    return Speech(folder)


async def text_of(speech: Speech, asked: GenerateRequest) -> str:
    """Return the text of an answer, whose run must not fail."""
    events = await all_events(speech.transcriber.run(asked))
    assert isinstance(events[-1], RunEnded), events[-1]
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def failure_of(speech: Speech, asked: GenerateRequest) -> RunFailed:
    (event,) = await all_events(speech.transcriber.run(asked))
    assert isinstance(event, RunFailed)
    return event


async def test_next_window_starts_at_the_last_complete_segment(speech: Speech) -> None:
    speech.say(0.0, " one", 4.0, 4.0, " two", 8.0, 8.0, " cut")
    speech.say(0.0, " three", 5.0)
    assert await text_of(speech, request(3500)) == "one two three"
    first, second = speech.decoded
    assert first.media[0].media.array()[:, 800].tolist() == (
        second.media[0].media.array()[:, 0].tolist()
    )


async def test_window_without_complete_segments_is_used_whole(speech: Speech) -> None:
    speech.say(0.0, " all of it")
    speech.say(0.0, " more", 2.0)
    assert await text_of(speech, request(3200)) == "all of it more"


async def test_short_recording_is_padded_to_a_window(speech: Speech) -> None:
    speech.say(0.0, " short", 1.0)
    assert await text_of(speech, request(120)) == "short"
    (only,) = speech.decoded
    array = only.media[0].media.array()
    assert array.shape == (80, 3000) and not array[:, 120:].any()


async def test_segments_are_shown_one_by_one(speech: Speech) -> None:
    speech.say(0.0, " one", 4.0, 4.0, " two", 8.0)
    events = await all_events(speech.transcriber.run(request(1000)))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert texts == ["one", " two"]
    assert isinstance(events[0], RunStarted) and events[0].prompt_tokens == 500
    assert isinstance(events[-2], TurnEnded) and events[-2].finish == "stop"


async def test_unlikely_text_is_decoded_again_at_higher_temperatures(speech: Speech) -> None:
    speech.say(0.0, " wrong", 4.0, logprob=-3.0)
    speech.say(0.0, " still wrong", 4.0, logprob=-2.0)
    speech.say(0.0, " right", 4.0)
    assert await text_of(speech, request(500)) == "right"
    assert [one.sampling.temperature for one in speech.decoded] == [0.0, 0.2, 0.4]


async def test_text_that_repeats_itself_is_decoded_again(speech: Speech) -> None:
    speech.say(0.0, " and so on" * 20, 4.0)
    speech.say(0.0, " right", 4.0)
    assert await text_of(speech, request(500)) == "right"


async def test_shown_segments_are_kept_when_the_rest_is_decoded_again(speech: Speech) -> None:
    speech.say(0.0, " good", 2.0, 2.0, " bad " * 60, 4.0)
    speech.say(2.0, " better", 4.0)
    assert await text_of(speech, request(500)) == "good better"
    first, second = speech.decoded
    shown = len(second.token_ids) - len(first.token_ids)
    assert second.token_ids[-shown:] == tuple(one.token_id for one in speech.answers[0][:shown])


async def test_unlikely_text_in_silence_is_dropped(speech: Speech) -> None:
    speech.no_speech = -0.1
    speech.say(0.0, " thanks for watching", 4.0, logprob=-2.0)
    speech.say(0.0, " speech", 4.0)
    assert await text_of(speech, request(3400)) == "speech"
    assert len(speech.decoded) == 2


async def test_language_is_detected_once_per_recording(speech: Speech) -> None:
    speech.language = "de"
    speech.say(0.0, " eins")
    speech.say(0.0, " zwei", 2.0)
    await text_of(speech, request(3100))
    (asked,) = speech.others
    tokens = speech.spec.tokens
    assert set(asked.sampling.logit_bias or {}) == set(tokens.languages.values())
    opening = tokens.opening("de", tokens.transcribe)
    assert all(one.token_ids[-3:] == opening for one in speech.decoded)


@pytest.mark.parametrize("line", ["language: de", "Language: German", "x\n language : DE \ny"])
async def test_language_of_the_request_is_used(speech: Speech, line: str) -> None:
    speech.say(0.0, " eins", 2.0)
    await text_of(speech, request(100, text=line))
    assert speech.others == []
    assert speech.decoded[0].token_ids[-2] == speech.spec.tokens.languages["de"]


async def test_task_and_prompt_of_the_request_are_used(speech: Speech) -> None:
    speech.say(0.0, " one", 2.0)
    await text_of(speech, request(100, text="task: translate\nprompt: Penstock\nlanguage: fr"))
    tokens = speech.spec.tokens
    prompt = speech.decoded[0].token_ids
    assert prompt[-1] == tokens.translate
    assert prompt[:-3] == (tokens.previous, *speech.transcriber.tokenizer.encode(" Penstock"))


async def test_segments_have_times_on_request(speech: Speech) -> None:
    speech.say(0.0, " one", 4.0, 4.0, " two", 8.5)
    asked = request(1000, text="timestamps: true")
    expected = "[00:00.000 --> 00:04.000] one\n[00:04.000 --> 00:08.500] two"
    assert await text_of(speech, asked) == expected


async def test_previous_text_is_the_prompt_of_the_next_window(speech: Speech) -> None:
    speech.say(0.0, " one", 4.0, 4.0, " cut")
    speech.say(0.0, " two", 2.0)
    await text_of(speech, request(1000, text="language: en"))
    said = tuple(one.token_id for one in speech.answers[0][:6])
    assert speech.decoded[1].token_ids[:-3] == (speech.spec.tokens.previous, *said)


async def test_text_of_a_high_temperature_is_not_the_next_prompt(speech: Speech) -> None:
    for _ in range(3):
        speech.say(0.0, " bad", 4.0, 4.0, " bad", logprob=-3.0)
    speech.say(0.0, " one", 4.0, 4.0, " cut")
    speech.say(0.0, " two", 2.0)
    assert await text_of(speech, request(1000, text="language: en")) == "one two"
    assert len(speech.decoded[-1].token_ids) == 3


async def test_temperature_of_the_request_replaces_the_fallback(speech: Speech) -> None:
    speech.say(0.0, " bad", 4.0, logprob=-3.0)
    asked = request(500, sampling=Sampling(temperature=0.7, seed=5))
    assert await text_of(speech, asked) == "bad"
    assert [(one.sampling.temperature, one.seed) for one in speech.decoded] == [(0.7, 5)]


async def test_recordings_are_transcribed_in_order(speech: Speech) -> None:
    speech.say(0.0, " one", 1.0)
    speech.say(0.0, " two", 2.0)
    assert await text_of(speech, request(100, 200)) == "one\ntwo"


async def test_recordings_of_earlier_turns_are_not_transcribed_again(speech: Speech) -> None:
    speech.say(0.0, " new", 1.0)
    messages = (
        Message("system", (Text("language: fr"),)),
        Message("user", (recording(100),)),
        Message("assistant", (Text("old"),)),
        Message("user", (recording(200),)),
    )
    assert await text_of(speech, GenerateRequest(messages=messages)) == "new"
    assert speech.decoded[0].token_ids[1] == speech.spec.tokens.languages["fr"]


async def test_token_limit_cuts_the_transcript(speech: Speech) -> None:
    speech.say(0.0, " one", 4.0, 4.0, " two", 8.0)
    events = await all_events(speech.transcriber.run(request(1000, limits=Limits(max_tokens=9))))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert texts == ["one", " t"]
    ended = events[-1]
    assert isinstance(ended, RunEnded) and ended.status == "incomplete"
    assert ended.usage.completion_tokens == 9


async def test_stop_string_ends_the_transcript(speech: Speech) -> None:
    speech.say(0.0, " one stop", 4.0, 4.0, " two", 8.0)
    events = await all_events(speech.transcriber.run(request(1000, stop=("stop",))))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert texts == ["one "]
    (turn,) = [event for event in events if isinstance(event, TurnEnded)]
    assert turn.stop_sequence == "stop"
    assert turn.usage.completion_tokens == len(" one stop") + 2


async def test_request_without_audio_is_refused(speech: Speech) -> None:
    asked = GenerateRequest(messages=(Message("user", (Text("hello"),)),))
    event = await failure_of(speech, asked)
    assert event.status == 400 and "audio part" in event.message and event.field == "messages"


async def test_image_is_refused_by_its_place(speech: Speech) -> None:
    parts = (recording(100), Image(data=b"x"))
    asked = GenerateRequest(
        messages=(Message("user", parts),), part_paths=(("messages.0.a", "messages.0.b"),)
    )
    event = await failure_of(speech, asked)
    assert event.field == "messages.0.b"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 2, "best_of": 2}, "n"),
        ({"top_logprobs": 0}, "logprobs"),
        ({"constraint": Constraint("regex", "a")}, "response_format"),
        ({"adapter": "x"}, "adapter"),
        ({"answer_prefix": "x"}, "messages"),
    ],
)
async def test_unsupported_fields_are_refused_by_name(
    speech: Speech, fields: dict[str, Any], named: str
) -> None:
    event = await failure_of(speech, request(100, **fields))
    assert event.field == named and event.status == 400


@pytest.mark.parametrize("line", ["language: tlh", "task: sing", "timestamps: maybe"])
async def test_invalid_instruction_is_named(speech: Speech, line: str) -> None:
    event = await failure_of(speech, request(100, text=line))
    assert line.split(":")[0] in event.message and event.field == "messages"


async def test_tools_that_must_be_called_are_refused(speech: Speech) -> None:
    from penstock.dialog import FunctionTool

    tools = (FunctionTool("f"),)
    asked = request(100, tools=tools, tool_policy=ToolPolicy("required"))
    assert (await failure_of(speech, asked)).field == "tool_choice"


async def test_count_needs_no_engine(speech: Speech) -> None:
    assert await speech.transcriber.count(request(301, text="prompt: ab")) == 151 + 3
    assert speech.decoded == []


async def test_closing_early_aborts_the_window(speech: Speech) -> None:
    speech.say(0.0, " one", 4.0, 4.0, " two", 8.0)
    events = speech.transcriber.run(request(1000))
    async for event in events:
        if isinstance(event, TextDelta):
            break
    await events.aclose()
    assert speech.engine.active == set() and len(speech.engine.aborted) == 1
