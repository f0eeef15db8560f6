"""Speech to text through the official clients, over a server process with a small Whisper."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import anthropic
import numpy as np
import openai
import pytest

from tests.support.servers.server_process import ServerProcess
from tests.support.speech.whisper_folders import random_whisper

soundfile = pytest.importorskip("soundfile", reason="the extra `media` is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = random_whisper(tmp_path_factory.mktemp("whisper"))
    started = ServerProcess(tmp_path_factory.mktemp("home"), str(folder))
    started.wait_ready()
    yield started
    started.interrupt()
    started.wait_ended()


@pytest.fixture(scope="module")
def speech() -> str:
    """Return three seconds of a WAV file in base64."""
    source = np.random.default_rng(0)
    file = io.BytesIO()
    soundfile.write(file, 0.1 * source.normal(size=3 * 16_000), 16_000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def spoken(speech: str, *texts: str) -> Any:
    audio = {"type": "input_audio", "input_audio": {"data": speech, "format": "wav"}}
    parts = [audio, *({"type": "text", "text": text} for text in texts)]
    return [{"role": "user", "content": parts}]


def test_chat_transcribes_and_reports_usage(client: openai.OpenAI, speech: str) -> None:
    answer = client.chat.completions.create(
        model="default", messages=spoken(speech, "language: en"), max_tokens=20
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 150
    assert 0 < answer.usage.completion_tokens <= 20


def test_streamed_transcript_is_the_whole_one(client: openai.OpenAI, speech: str) -> None:
    whole = client.chat.completions.create(model="default", messages=spoken(speech), max_tokens=40)
    stream = client.chat.completions.create(
        model="default", messages=spoken(speech), max_tokens=40, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_responses_transcribe(client: openai.OpenAI, speech: str) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": speech, "format": "wav"}}
    asked: Any = [{"role": "user", "content": [audio]}]
    answer = client.responses.create(model="default", input=asked, max_output_tokens=20)
    assert answer.usage is not None and answer.usage.input_tokens == 150


def test_messages_transcribe_an_uploaded_file(
    client: openai.OpenAI, server: ServerProcess, speech: str
) -> None:
    """The Messages API has no audio block: the recording is an uploaded file."""
    uploaded = client.files.create(file=("talk.wav", base64.b64decode(speech)), purpose="user_data")
    document = {"type": "document", "source": {"type": "file", "file_id": uploaded.id}}
    asked: Any = [{"role": "user", "content": [document, {"type": "text", "text": "language: en"}]}]
    other = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    expected = client.chat.completions.create(
        model="default", messages=spoken(speech, "language: en"), max_tokens=20
    )
    answer = other.messages.create(model="default", max_tokens=20, messages=asked)
    with other.messages.stream(model="default", max_tokens=20, messages=asked) as stream:
        streamed = stream.get_final_message()
    assert answer.usage.input_tokens == streamed.usage.input_tokens == 150
    assert answer.content[0].type == streamed.content[0].type == "text"
    assert answer.content[0].text == expected.choices[0].message.content
    assert streamed.content[0].text == answer.content[0].text


def test_the_model_card_says_that_the_model_transcribes(client: openai.OpenAI) -> None:
    card: Any = client.models.retrieve("default")
    assert card.architecture == {
        "input_modalities": ["audio"],
        "output_modalities": ["transcription"],
    }


def test_request_without_audio_is_refused(client: openai.OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "hello"}]
        )
    assert caught.value.code == "missing_audio"
    other = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="audio part"):
        other.messages.create(
            model="default", max_tokens=5, messages=[{"role": "user", "content": "hello"}]
        )


def test_damaged_audio_is_refused_by_its_place(client: openai.OpenAI) -> None:
    damaged = base64.b64encode(b"RIFF" + bytes(40)).decode()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="default", messages=spoken(damaged))
    assert caught.value.param is not None and "content" in caught.value.param


def test_completions_and_embeddings_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="transcribes speech"):
        client.completions.create(model="default", prompt="hello")
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="default", input="hello")
