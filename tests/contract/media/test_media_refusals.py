"""Media that are refused, by code and field, without effect on other requests."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from penstock.config import MediaSettings
from tests.support.media.small_processor import png
from tests.support.servers.file_server import Files
from tests.support.servers.file_server import serving as serving_files
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server
from tests.support.small_web import SmallWeb, content, moved, small_web

RED = png(40, 30)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str = "What?") -> dict[str, Any]:
    return {"type": "text", "text": text}


async def refused(served: MediaServing, *content: dict[str, Any]) -> tuple[int, str, str, str]:
    """Return the status, code, field and message of the error of a chat request."""
    messages: Any = [{"role": "user", "content": list(content)}]
    with pytest.raises(openai.APIStatusError) as caught:
        await served.server.openai.chat.completions.create(
            model=MODEL, max_tokens=4, messages=messages
        )
    error: Any = caught.value.body
    return caught.value.status_code, error["code"], error["param"], error["message"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(60), "invalid_image"),
        (RED[:-30], "invalid_image"),
        (b"not an image at all", "invalid_image"),
        (SVG, "unsupported_media_format"),
        (WAV, "unsupported_media_format"),
        (png(300, 300), "media_too_large"),
    ],
    ids=["damaged", "truncated", "text", "svg", "audio", "pixels"],
)
async def test_images_that_cannot_be_used_are_named(llava: Path, data: bytes, code: str) -> None:
    limits = MediaSettings(max_image_pixels=50_000)
    async with media_server(llava, limits) as served:
        answered = asyncio.ensure_future(_answer(served))
        status, found, field, message = await refused(
            served, text_part(), image_part(data_url(data))
        )
        assert (await answered).usage.completion_tokens == 4
    assert (status, found) == (400, code)
    assert field.startswith("messages[0].content[1].image_url")
    assert "Traceback" not in message and "/" not in message.replace("MP4/", "")


async def _answer(served: MediaServing) -> Any:
    messages: Any = [{"role": "user", "content": [image_part(data_url(RED)), text_part()]}]
    return await served.server.openai.chat.completions.create(
        model=MODEL, max_tokens=4, messages=messages, extra_body={"ignore_eos": True}
    )


async def test_the_media_type_that_the_client_states_does_not_matter(llava: Path) -> None:
    async with media_server(llava) as served:
        messages: Any = [{"role": "user", "content": [image_part(data_url(RED, "image/webp"))]}]
        answer = await served.server.openai.chat.completions.create(
            model=MODEL, max_tokens=4, messages=messages
        )
        assert answer.choices and await served.encoded() == 1


async def test_kinds_that_the_model_does_not_read_are_refused(llava: Path) -> None:
    encoded = base64.b64encode(WAV).decode()
    audio = {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}
    video = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
    async with media_server(llava) as served:
        heard = await refused(served, text_part(), audio)
        seen = await refused(served, video)
    assert heard[:3] == (400, "unsupported_value", "messages[0].content[1].input_audio")
    assert "the model reads text and images, no audio" in heard[3]
    assert seen[:3] == (400, "unsupported_value", "messages[0].content[0].video_url")


async def test_a_file_of_another_kind_stays_a_text(llava: Path) -> None:
    encoded = data_url(WAV, "audio/wav")
    file = {"type": "file", "file": {"filename": "a.wav", "file_data": encoded}}
    async with media_server(llava) as served:
        messages: Any = [{"role": "user", "content": [file]}]
        answer = await served.server.openai.chat.completions.create(
            model=MODEL, max_tokens=4, messages=messages
        )
    assert answer.usage is not None and answer.usage.prompt_tokens > 20


async def test_urls_of_files_are_refused_in_chat(llava: Path) -> None:
    by_url = {"type": "file", "file": {"file_url": "https://example.com/a.png"}}
    async with media_server(llava) as served:
        found = await refused(served, text_part(), by_url)
    assert found[0] == 400 and found[2] == "messages[0].content[1].file.file_url"


async def test_urls_of_private_addresses_are_not_fetched(llava: Path) -> None:
    with serving_files(Files()) as pages:
        pages.add("/red.png", RED, "image/png")
        async with media_server(llava, allowed=()) as served:
            found = await refused(served, text_part(), image_part(f"{pages.url}/red.png"))
            local = await refused(served, image_part("file:///etc/hostname"))
        assert not pages.requests
    assert found[:2] == (400, "url_not_allowed") and local[0] == 400
    assert found[2].startswith("messages[0].content[1].image_url")


async def test_urls_that_redirect_inward_are_not_followed(llava: Path) -> None:
    hidden = SmallWeb(pages={"/secret": content(RED, "image/png")})
    server = await asyncio.start_server(hidden.serve, "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    target = f"http://127.0.0.2:{port}/secret"
    async with server, small_web(moved=moved(target)) as web, media_server(llava) as served:
        found = await refused(served, image_part(web.url("/moved")))
        assert len(web.seen) == 1 and hidden.seen == []
        assert (await served.server.http.get(target)).status_code == 200, "it can be reached"
    assert found[:2] == (400, "url_not_allowed")
    assert found[2].startswith("messages[0].content[0].image_url")


def _bomb(side: int) -> bytes:
    """Return a PNG of black pixels, which is a thousand times smaller than they are."""
    rows = zlib.compress(bytes((3 * side + 1) * side), 9)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


async def test_a_decompression_bomb_is_refused_beside_other_requests(llava: Path) -> None:
    async with media_server(llava) as served:
        answered = asyncio.ensure_future(_answer(served))
        found = await refused(served, image_part(data_url(_bomb(10_000))))
        assert (await answered).usage.completion_tokens == 4
    assert found[:2] == (400, "media_too_large")
    assert "the image has 10000 x 10000 pixels; at most 64000000" in found[3]


async def test_an_image_of_one_pixel_is_read(llava: Path) -> None:
    async with media_server(llava) as served:
        messages: Any = [{"role": "user", "content": [image_part(data_url(png(1, 1)))]}]
        answer = await served.server.openai.chat.completions.create(
            model=MODEL, max_tokens=4, messages=messages
        )
        assert answer.choices and await served.encoded() == 1


async def test_the_number_of_items_is_limited(llava: Path) -> None:
    async with media_server(llava, MediaSettings(max_media_items=2)) as served:
        found = await refused(served, *[image_part(data_url(RED))] * 3)
    assert found[:2] == (400, "too_many_media")
    assert found[2].startswith("messages[0].content[2].image_url")


async def test_a_damaged_image_of_a_tool_does_not_end_the_conversation(llava: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(SVG).decode()}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    messages: Any = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    async with media_server(llava) as served:
        answer = await served.anthropic.messages.create(
            model=MODEL, max_tokens=4, messages=messages
        )
        assert answer.usage.output_tokens > 0 and await served.encoded() == 0
        messages = [{"role": "user", "content": [image]}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]"):
            await served.anthropic.messages.create(model=MODEL, max_tokens=4, messages=messages)


async def test_responses_name_the_part_that_is_wrong(llava: Path) -> None:
    image = {"type": "input_image", "image_url": data_url(SVG, "image/svg+xml")}
    given: Any = [{"role": "user", "content": [{"type": "input_text", "text": "x"}, image]}]
    async with media_server(llava) as served:
        with pytest.raises(openai.BadRequestError) as caught:
            await served.server.openai.responses.create(model=MODEL, input=given)
    body: Any = caught.value.body
    assert body["code"] == "unsupported_media_format" and body["param"] == "input[0].content[1]"
