"""`POST /v1/audio/speech` as clients see it, over real HTTP and a real engine."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from penstock.agent import AgentLoop, Runners
from penstock.api.route_table.table import OPERATIONS
from penstock.engine.local import LocalEngine
from penstock.engine.media_core import MediaCore
from penstock.engine.speech_maker import SpeechMaker
from penstock.generation import Generator
from penstock.generation.speech.speech import SpeechRunner
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving
from tests.support.speech.tone_speaker import (
    BROKEN,
    RATE,
    SAMPLES_PER_WORD,
    SILENT,
    ToneSpeaker,
)

URL = "/v1/audio/speech"
HEADER_BYTES = 44
UNKNOWN_BYTES = 0xFFFFFFFF


@asynccontextmanager
async def speaking(speaker: ToneSpeaker, max_queue: int = 8) -> AsyncIterator[Serving]:
    """A server with a speech model, and a model that writes text."""
    engine = LocalEngine(MediaCore(SpeechMaker(speaker), max_queue))
    writer = AgentLoop(Generator(ScriptedEngine([5]), tiny_tokenizer(), tiny_template()))
    models = {MODEL: Runners(speaker=SpeechRunner(engine)), "writer": writer}
    try:
        async with serving(models=models, engine=engine) as server:
            yield server
    finally:
        speaker.held = False
        speaker.permits.release(1000)
        await engine.close()


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with speaking(ToneSpeaker()) as running:
        yield running


async def spoken(server: Serving, **body: Any) -> httpx.Response:
    answer = await server.http.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def refused(server: Serving, path: str = URL, **body: Any) -> dict[str, Any]:
    answer = await server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def samples_of(*lengths: int, factor: float = 1.0) -> bytes:
    """Return the samples of words of these lengths."""
    values = np.repeat(np.array(lengths) / 1000 * factor, SAMPLES_PER_WORD)
    return np.rint(values * 32767).astype("<i2").tobytes()


async def test_pcm_is_the_samples_of_all_sentences_in_order(server: Serving) -> None:
    answer = await spoken(server, input="One three. Two.", response_format="pcm")
    kind = f"audio/pcm; codecs=1; format=s16le; rate={RATE}; channels=1"
    assert answer.headers["content-type"] == kind
    assert answer.content == samples_of(3, 6, 4)


async def test_wav_has_the_header_of_a_stream_of_unknown_length(server: Serving) -> None:
    answer = await spoken(server, input="One", response_format="wav")
    assert answer.headers["content-type"] == f"audio/wav; rate={RATE}; channels=1"
    head, audio = answer.content[:HEADER_BYTES], answer.content[HEADER_BYTES:]
    riff, size, wave, form, tag, channels, rate, rate_bytes, frame, bits, data, data_size = (
        struct.unpack("<4sI8sIHHIIHH4sI", head)
    )
    assert (riff, wave, data) == (b"RIFF", b"WAVEfmt ", b"data")
    assert size == data_size == UNKNOWN_BYTES
    assert (form, tag, channels, rate) == (16, 1, 1, RATE)
    assert (rate_bytes, frame, bits) == (2 * RATE, 2, 16)
    assert audio == samples_of(3)


async def test_format_is_wav_by_default(server: Serving) -> None:
    answer = await spoken(server, input="One")
    assert answer.content[:4] == b"RIFF"


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "ogg"])
async def test_other_formats_are_a_validation_error(server: Serving, form: str) -> None:
    error = await refused(server, input="One", response_format=form)
    assert error["message"] == f'`response_format` must be "pcm" or "wav", not "{form}"'
    assert (error["param"], error["code"]) == ("response_format", "unsupported_value")


async def test_voice_and_speed_are_honoured(server: Serving) -> None:
    fields = {"input": "One", "response_format": "pcm"}
    assert (await spoken(server, **fields, voice="low")).content == samples_of(3, factor=0.5)
    assert (await spoken(server, **fields, voice={"id": "low"})).content == samples_of(
        3, factor=0.5
    )
    assert (await spoken(server, **fields, speed=0.5)).content == samples_of(3, factor=2)
    assert (await spoken(server, **fields, speed=100)).content == samples_of(3, factor=0.25)


@pytest.mark.parametrize("value", ["alloy", "", None, 7, ["a"], {"id": 3}, True])
async def test_ignored_fields_take_any_value(server: Serving, value: Any) -> None:
    fields = {"voice": value, "instructions": value, "speed": None if value == 7 else value}
    answer = await spoken(server, input="One", response_format="pcm", **fields)
    assert answer.content == samples_of(3)


@pytest.mark.parametrize("text", ["", " \n\t", "?! ...", SILENT, f"{SILENT}. {SILENT}!"])
async def test_text_without_sounds_is_refused(server: Serving, text: str) -> None:
    error = await refused(server, input=text)
    assert error["param"] == "input"
    assert error["code"] in ("invalid_value", "unpronounceable_input")


async def test_missing_and_wrong_input_is_named(server: Serving) -> None:
    assert (await refused(server))["code"] == "missing_required_parameter"
    assert (await refused(server, input=["a"]))["param"] == "input"
    long = await refused(server, input="a " * 16385)
    assert long["message"].startswith("`input` must be a string of 1 to 32768 characters")
    other = await refused(server, input="a", stream_format="sse")
    assert other["param"] == "stream_format"


async def test_the_example_of_the_explorer_is_answered(server: Serving) -> None:
    (operation,) = (one for one in OPERATIONS if one.path == URL)
    answer = await server.http.post(URL, json=operation.example)
    assert answer.status_code == 200


async def test_the_model_card_lists_the_voices(server: Serving) -> None:
    card = (await server.http.get(f"/v1/models/{MODEL}")).json()
    assert card["voices"] == ["high", "low"]
    assert card["max_model_len"] is None
    assert card["architecture"] == {"input_modalities": ["text"], "output_modalities": ["speech"]}


async def test_unknown_model_is_not_found(server: Serving) -> None:
    answer = await server.http.post(URL, json={"input": "a", "model": "nobody"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_first_sentence_arrives_before_the_second_is_spoken() -> None:
    speaker = ToneSpeaker(held=True)
    async with speaking(speaker) as server:
        speaker.permits.release(1)
        body = {"input": "One. Three words here.", "response_format": "pcm"}
        async with server.http.stream("POST", URL, json=body) as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces) == samples_of(4)
            assert speaker.spoken == [(4,)]
            speaker.permits.release(1)
            assert b"".join([piece async for piece in pieces]) == samples_of(5, 5, 5)


async def test_a_disconnect_drops_the_sentences_that_are_not_spoken() -> None:
    speaker = ToneSpeaker(held=True)
    engine = LocalEngine(MediaCore(SpeechMaker(speaker), 8))
    try:
        async with serving(models={MODEL: Runners(speaker=SpeechRunner(engine))}) as server:
            speaker.permits.release(1)
            body = {"input": "Word. " * 5000, "response_format": "pcm"}
            async with server.http.stream("POST", URL, json=body) as answer:
                await anext(answer.aiter_raw())
            while (await _aborted(speaker, engine)) == 0:
                pass
        assert len(speaker.spoken) < 2500
    finally:
        speaker.held = False
        speaker.permits.release(1)
        await engine.close()


async def _aborted(speaker: ToneSpeaker, engine: LocalEngine) -> int:
    """Let the engine speak one sentence, then return its number of aborted requests."""
    speaker.permits.release(1)
    return (await engine.gauges()).completed_abort


async def test_a_failure_before_the_first_sentence_is_an_error(server: Serving) -> None:
    answer = await server.http.post(URL, json={"input": f"{BROKEN}. One."})
    assert answer.status_code == 500
    assert "piece" not in answer.json()["error"]["message"]


async def test_a_failure_in_the_stream_breaks_the_connection(server: Serving) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await server.http.post(URL, json={"input": f"One. {BROKEN}."})
    assert (await spoken(server, input="One", response_format="pcm")).content == samples_of(3)


async def test_a_full_queue_is_refused() -> None:
    speaker = ToneSpeaker(held=True)
    async with speaking(speaker, max_queue=1) as server:
        speaker.permits.release(1)
        body = {"input": "Word. " * 5000, "response_format": "pcm"}
        async with server.http.stream("POST", URL, json=body) as answer:
            sentences = answer.aiter_raw()
            await anext(sentences)
            second = asyncio.create_task(server.http.post(URL, json=body))
            while not second.done():  # one sentence at a time, so that the first is still open
                speaker.permits.release(1)
                await anext(sentences)
            full = await second
            assert full.status_code == 429
            assert full.headers["retry-after"] == "1"


async def test_official_client_reads_and_streams_speech(server: Serving) -> None:
    speech = server.openai.audio.speech
    whole = await speech.create(
        model=MODEL, voice="low", input="One two.", response_format="pcm", speed=2
    )
    assert whole.content == samples_of(3, 4, factor=0.25)
    async with speech.with_streaming_response.create(
        model=MODEL, voice="high", input="One two. Six.", response_format="pcm"
    ) as streamed:
        assert await streamed.read() == samples_of(3, 4, 4)
    told = await speech.create(
        model=MODEL, voice="any", input="One", response_format="wav", instructions="Whisper."
    )
    assert told.content[HEADER_BYTES:] == samples_of(3)
    refused_forms: tuple[Any, ...] = ("mp3", "opus", "aac", "flac")
    for form in refused_forms:
        with pytest.raises(openai.BadRequestError, match=f'must be "pcm" or "wav", not "{form}"'):
            await speech.create(model=MODEL, voice="low", input="One", response_format=form)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/rerank", {"query": "hi", "documents": ["a"]}),
    ],
)
async def test_a_speech_model_refuses_other_requests(
    server: Serving, path: str, body: dict[str, Any]
) -> None:
    error = await refused(server, path, **body)
    assert error["message"] == (
        "this model makes speech and does nothing else: use it in /v1/audio/speech,"
        " or name another model"
    )
    assert error["code"] == "unsupported_model"


async def test_a_text_model_refuses_speech(server: Serving) -> None:
    error = await refused(server, input="hi", model="writer")
    assert error["message"] == "this model does not speak; name a speech model"
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
