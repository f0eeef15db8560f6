"""Dying decoding processes and damaged images disturb no other request of a server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest

from tests.support.media.small_processor import png
from tests.support.media_files import IMAGE_FORMATS, image_file, picture
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server


async def answer(served: MediaServing, image: bytes | None = None) -> Any:
    parts: list[Any] = [{"type": "text", "text": "What is it?"}]
    if image is not None:
        parts.append({"type": "image_url", "image_url": {"url": data_url(image)}})
    return await served.server.openai.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=4, messages=[{"role": "user", "content": parts}]
    )


def decoding_processes() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if _decodes(child)]


def _decodes(process: psutil.Process) -> bool:
    try:
        return "penstock.media.worker" in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended; also raised for a zombie
        return False


async def test_killed_processes_are_replaced(llava: Path) -> None:
    async with media_server(llava) as served:
        await answer(served, png(40, 30))
        for pid in decoding_processes():
            os.kill(pid, signal.SIGKILL)
        assert (await answer(served, png(30, 40, (0, 0, 255)))).choices
        assert await served.encoded() == 2
    assert decoding_processes() == []


async def test_processes_killed_at_their_start_are_a_503_until_one_starts(llava: Path) -> None:
    async with media_server(llava) as served:
        asked = asyncio.ensure_future(answer(served, png(40, 30)))
        killed: set[int] = set()
        while not asked.done():
            for pid in set(decoding_processes()) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            await asyncio.sleep(0)
        with pytest.raises(openai.InternalServerError) as caught:
            await asked
        assert caught.value.status_code == 503 and len(killed) == 2
        assert caught.value.response.headers["retry-after"] == "5"
        body: Any = caught.value.body
        assert body["code"] == "unavailable" and "try again later" in body["message"]
        assert (await answer(served)).choices
        assert (await answer(served, png(40, 30))).choices
        assert await served.encoded() == 1


async def test_damaged_images_beside_other_requests(llava: Path) -> None:
    random = np.random.default_rng(7)
    damaged = []
    for name in IMAGE_FORMATS:
        valid = image_file(picture(), name)
        for _ in range(5):
            mutated = bytearray(valid)
            for at in random.integers(4, len(valid), 6):
                mutated[at] = random.integers(256)
            damaged.append(bytes(mutated))
    async with media_server(llava) as served:
        expected = await answer(served), await answer(served, png(40, 30))
        others = [answer(served), answer(served, png(40, 30))]
        *answers, text, image = await asyncio.gather(
            *(answer(served, one) for one in damaged), *others, return_exceptions=True
        )
    for given in answers:
        if isinstance(given, BaseException):
            assert isinstance(given, openai.BadRequestError)
            assert given.code in ("invalid_image", "media_too_large", "unsupported_media_format")
            assert given.param is not None and given.param.startswith("messages[0].content[1]")
    assert [one.choices[0].message for one in (text, image)] == [
        one.choices[0].message for one in expected
    ]
