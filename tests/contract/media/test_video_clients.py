"""Videos through the official clients, over a real model with decoding processes."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.checkpoints.small_qwen2_vl import write_small_qwen2_vl
from tests.support.media.small_processor import png
from tests.support.servers.file_server import Files
from tests.support.servers.file_server import serving as serving_files
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WORDS = {"type": "text", "text": "What happens?"}
IMAGE = {"type": "image_url", "image_url": {"url": data_url(png(56, 56))}}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_qwen2_vl(tmp_path_factory.mktemp("qwen2-vl"))


def gif(*colours: tuple[int, int, int]) -> bytes:
    """Return an animation of half a second per colour."""
    first, *others = [Image.new("RGB", (56, 56), colour) for colour in colours]
    file = BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=500)
    return file.getvalue()


VIDEO = gif(RED, GREEN, BLUE, RED)


def video(data: bytes = VIDEO) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(data, "image/gif")}}


async def chat(served: MediaServing, content: Sequence[dict[str, Any]]) -> Any:
    messages: Any = [{"role": "user", "content": list(content)}]
    return await served.server.openai.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=8, messages=messages
    )


async def test_chat_takes_videos_in_every_form(qwen: Path) -> None:
    with serving_files(Files()) as pages:
        pages.add("/clip.gif", VIDEO, "image/gif")
        async with media_server(qwen) as served:
            assert served.engine.info.media_kinds == ("image", "video")
            forms = [
                video(),
                {"type": "video_url", "video_url": data_url(VIDEO, "image/gif")},
                {"type": "video_url", "video_url": {"url": f"{pages.url}/clip.gif"}},
            ]
            answers = [await chat(served, [form, WORDS]) for form in forms]
            assert await served.encoded() == 1
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert len({answer.usage.prompt_tokens for answer in answers}) == 1


async def test_an_animation_may_be_sent_as_an_image(qwen: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": data_url(VIDEO, "image/gif")}}
    async with media_server(qwen) as served:
        still = await chat(served, [image, WORDS])
        moving = await chat(served, [video(), WORDS])
    assert still.usage.prompt_tokens < moving.usage.prompt_tokens


async def test_the_order_of_images_and_videos_is_kept(qwen: Path) -> None:
    async with media_server(qwen) as served:
        answers = [
            await chat(served, content)
            for content in (
                [IMAGE, video(), WORDS],
                [video(), IMAGE, WORDS],
                [video(gif(BLUE, RED)), IMAGE, WORDS],
            )
        ]
        assert await served.encoded() == 3
    assert len({answer.choices[0].message.content for answer in answers}) == 3


async def test_longer_videos_have_more_tokens_up_to_a_number_of_frames(qwen: Path) -> None:
    async with media_server(qwen) as served:
        tokens = [
            (await chat(served, [video(gif(*[RED, GREEN] * count)), WORDS])).usage.prompt_tokens
            for count in (1, 4, 40, 60)
        ]
    assert tokens[0] < tokens[1] < tokens[2] and tokens[3] - tokens[2] <= tokens[1]


async def test_text_continues_from_the_positions_of_a_video(qwen: Path) -> None:
    """A second turn over a video hits the prefix cache and encodes nothing."""
    async with media_server(qwen) as served:
        first = await chat(served, [video(), WORDS])
        messages: Any = [
            {"role": "user", "content": [video(), WORDS]},
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And then?"},
        ]
        second = await served.server.openai.chat.completions.create(
            model=MODEL, temperature=0, max_tokens=8, messages=messages
        )
        assert await served.encoded() == 1
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 16
