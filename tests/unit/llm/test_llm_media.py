"""Media in embedded use: the forms that `LLM.chat` takes, with a real processor."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from penstock.agent import AgentLoop, Runners
from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, ConversationInput, Image, Message, Text, Video
from penstock.engine.types import EngineInfo
from penstock.generation import Generator
from penstock.generation.media.loader import MediaLoader
from penstock.llm import LLM, EmbeddedModel
from penstock.llm.content import content_parts
from penstock.llm.requests import embedding_inputs
from penstock.text import ChatTemplate
from tests.support.checkpoints.tiny_tokenizer import CHATML
from tests.support.media.small_processor import (
    PillowDecoder,
    SmallProcessor,
    media_tokenizer,
    png,
    sound,
)
from tests.support.scripted_engine import ScriptedEngine

RED = png(16, 8)
PIXELS = np.zeros((8, 16, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
URL = "data:image/png;base64," + base64.b64encode(RED).decode()
INFO = EngineInfo("scripted", 512, 300, 8, 128, 16, 0, "fp", media_kinds=("image", "audio"))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine([65], info=INFO)


@pytest.fixture
def llm(engine: ScriptedEngine) -> Iterator[LLM]:
    processor = SmallProcessor()

    async def close() -> None:
        pass

    async def start() -> EmbeddedModel:
        template = ChatTemplate(CHATML, placeholders=processor.placeholders)
        media = MediaLoader(processor, PillowDecoder(processor), None)
        generator = Generator(engine, media_tokenizer(), template, media=media)  # type: ignore[arg-type]
        return EmbeddedModel(Runners(AgentLoop(generator)), 4, close)

    with LLM.from_embedded_model(start) as llm:
        yield llm


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": URL},
        {"type": "image", "image": RED},
        {"type": "image", "image": PIXELS},
        {"type": "image", "image": PillowImage.fromarray(PIXELS)},
        PillowImage.fromarray(PIXELS),
        RED,
        Image(data=RED),
    ],
    ids=range(8),
)
def test_all_forms_of_an_image_reach_the_model(
    llm: LLM, engine: ScriptedEngine, image: Any
) -> None:
    content = ["What?", image, {"type": "text", "text": "Say it."}]
    assert llm.chat([{"role": "user", "content": content}]).choices[0].parts == [Text("A")]
    (item,) = engine.requests[0].media
    assert item.media.layout == (1, 2) and set(item.media.array()[0]) == {0, 255}


def test_files_are_read_from_paths(llm: LLM, engine: ScriptedEngine, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    llm.chat([{"role": "user", "content": [tmp_path / "red.png"]}])
    llm.chat([{"role": "user", "content": [{"type": "image", "image": tmp_path / "red.png"}]}])
    first, second = (request.media[0].digest for request in engine.requests)
    assert first == second
    with pytest.raises(OSError, match=r"none\.png"):
        llm.chat([{"role": "user", "content": [tmp_path / "none.png"]}])


def test_recordings_reach_the_model(llm: LLM, engine: ScriptedEngine) -> None:
    llm.chat([{"role": "user", "content": [{"type": "audio", "audio": sound(3)}]}])
    assert engine.requests[0].media[0].media.shape == (3, 100)


def test_samples_become_a_wav_file_and_arrays_a_png_file() -> None:
    import wave

    (part,) = content_parts([{"type": "audio", "audio": (np.zeros(7, np.float32), 16000)}], "c")
    assert isinstance(part, Audio) and part.data is not None
    data = part.data
    assert data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") == len(data) - 8
    assert data[20:22] == b"\3\0" and data[-28:] == bytes(28)
    with (  # floats, in a valid header
        pytest.raises(wave.Error, match="unknown format: 3"),
        wave.open(io.BytesIO(data)),
    ):
        pass
    for shape in ((4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 4)):
        (part,) = content_parts([{"type": "image", "image": np.ones(shape, np.uint8)}], "c")
        assert isinstance(part, Image) and part.data is not None
        assert PillowImage.open(io.BytesIO(part.data)).size == (5, 4)


def test_the_kinds_of_files_are_told_from_their_bytes() -> None:
    mp4 = bytes(4) + b"ftypisom" + bytes(16)
    parts = content_parts([b"fLaC" + bytes(9), mp4, {"type": "video", "video": mp4}], "c")
    assert parts == (Audio(data=b"fLaC" + bytes(9)), Video(data=mp4), Video(data=mp4))


def test_input_audio_and_urls() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    video = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
    assert content_parts([audio, video], "c") == (
        Audio(data=b"RIFF"),
        Video(url="https://example.com/a.mp4"),
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image"}, "must be a part of a message"),
        ({"type": "image_url", "image_url": {"url": "photo.png"}}, "must have an https:"),
        ({"type": "image_url", "image_url": "data:image/png;base64,%%%"}, "not valid base64"),
        ({"type": "image", "image": np.ones((4, 4), np.float32)}, "must be an array of bytes"),
        ({"type": "audio", "audio": (np.ones((4, 2)), 16000)}, "must be \\(samples, rate\\)"),
        (b"plain text", "is not an image, a recording or a video"),
        (3, "has the type int"),
    ],
)
def test_other_parts_are_refused_by_their_place(part: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"messages.0..content.1. .*{message}") as caught:
        content_parts(["x", part], "messages[0].content")
    assert caught.value.field == "messages[0].content[1]"


def test_messages_of_the_dialog_are_taken_as_they_are(llm: LLM, engine: ScriptedEngine) -> None:
    llm.chat([Message("user", (Image(data=RED),))])
    assert len(engine.requests[0].media) == 1


def test_inputs_of_embeddings_are_told_apart() -> None:
    image = Image(data=RED)

    def conversation(*parts: Any) -> ConversationInput:
        return ConversationInput((Message("user", parts),))

    for single, expected in (
        ("a", "a"),
        ([1, 2], (1, 2)),
        (RED, conversation(image)),
        ({"type": "image", "image": RED}, conversation(image)),
    ):
        assert embedding_inputs(single) == (expected,)
    assert embedding_inputs(["a", [1, 2], RED, ["b", RED]]) == (
        "a",
        (1, 2),
        conversation(image),
        conversation(Text("b"), image),
    )
