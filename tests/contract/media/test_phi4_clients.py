"""Phi-4-multimodal through the official client: images, recordings, both and plain texts at once,
each with the model's adapter for it or none."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.checkpoints.small_phi4_multimodal import write_small_phi4_multimodal
from tests.support.media.small_processor import png
from tests.support.media_files import sound_file, tone
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server

WORDS: dict[str, Any] = {"type": "text", "text": "What is it?"}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": data_url(png(448, 300))}}
WAV = base64.b64encode(sound_file(tone(16_000, 2.0), 16_000, "wav_s16")).decode()
AUDIO: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}
IMAGE_ROWS = 11 * 17 + 1 + 16 * 17
"""Lines of 16 squares with a row at the end of each, a divider, and the whole image."""
AUDIO_ROWS = 25
"""One row per 80 ms."""
CONTENTS = {
    (): (WORDS,),
    ("image",): (IMAGE, WORDS),
    ("audio",): (AUDIO, WORDS),
    ("audio", "image"): (AUDIO, IMAGE, WORDS),
}


@pytest.fixture(scope="module")
def phi4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_phi4_multimodal(tmp_path_factory.mktemp("phi4"))


async def chat(served: MediaServing, content: Sequence[dict[str, Any]], **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": list(content)}]
    return await served.server.openai.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=8, logprobs=True, messages=messages, **more
    )


def tokens_of(answer: Any) -> list[bytes]:
    return [bytes(token.bytes) for token in answer.choices[0].logprobs.content]


async def test_answers_at_once_are_those_one_after_another(phi4: Path) -> None:
    async with media_server(phi4) as served:
        assert served.engine.info.media_kinds == ("image", "audio")
        alone = [await chat(served, content) for content in CONTENTS.values()]
        assert await served.encoded() == 3, "a recording beside an image is projected differently"
        together = await asyncio.gather(*(chat(served, one) for one in CONTENTS.values()))
    assert [tokens_of(answer) for answer in together] == [tokens_of(answer) for answer in alone]
    counts = [answer.usage.prompt_tokens for answer in alone]
    plain = counts[0]
    rows = [0, IMAGE_ROWS, AUDIO_ROWS, AUDIO_ROWS + IMAGE_ROWS]
    assert [count - plain for count in counts] == rows


async def test_a_client_without_adapters_may_not_name_those_of_the_model(phi4: Path) -> None:
    async with media_server(phi4) as served:
        for adapter in ("own:image", "vision-lora"):
            with pytest.raises(openai.BadRequestError) as caught:
                await chat(served, (WORDS,), extra_body={"adapter": adapter})
            assert caught.value.code == "lora_runtime_unavailable"
