"""Sends the frames of an event stream that is recorded or followed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Scope, Send

from penstock.api.codecs.openai_envelope import KEEP_ALIVE
from penstock.api.http.event_stream import STREAM_HEAD
from penstock.api.routes.answers import with_stall_timeout
from penstock.config import ServerSettings


async def send_frames(
    frames: AsyncGenerator[bytes, None], settings: ServerSettings, scope: Scope, send: Send
) -> None:
    """Send all frames, and keep-alives while there are no frames. Raises ClientDisconnected if the
    client stops reading.

    `frames`: yields b"" from time to time while nothing happens.
    """
    keep_alive_s, stall_s = settings.keep_alive_interval_ms / 1000, settings.stall_timeout_s
    await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEAD)})
    sent_s = time.monotonic()
    async with aclosing(frames):
        async for frame in frames:
            if not frame and time.monotonic() - sent_s < keep_alive_s:
                continue
            part = {"type": "http.response.body", "body": frame or KEEP_ALIVE}
            await with_stall_timeout(send({**part, "more_body": True}), scope, stall_s)
            sent_s = time.monotonic()
    await with_stall_timeout(send({"type": "http.response.body"}), scope, stall_s)
