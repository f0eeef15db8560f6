"""A server over a small real multimodal model, with decoding processes, a store, and a fetcher that
may connect to loopback."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anthropic

from penstock.agent import SharedState, load_runners
from penstock.agent.attachments import Attachments
from penstock.agent.model_media import MediaAccess
from penstock.config import EngineSettings, MediaSettings
from penstock.engine.local import LocalEngine
from penstock.fetch import AllowList, Fetcher
from tests.support.servers.http_server import MODEL, Serving, files_at, serving
from tests.support.stores import opened, store_settings

LOOPBACK: Final = ("127.0.0.1",)


@dataclass(frozen=True)
class MediaServing:
    """A running server and its engine."""

    server: Serving
    engine: LocalEngine

    @property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.server.url, api_key="any", max_retries=0)

    async def encoded(self) -> int:
        """Return the number of items that the towers have encoded."""
        return (await self.engine.gauges()).media_items_encoded


@asynccontextmanager
async def media_server(
    folder: Path,
    media: MediaSettings = MediaSettings(),  # noqa: B008
    allowed: tuple[str, ...] = LOOPBACK,
) -> AsyncIterator[MediaServing]:
    """Run a server over the model of a folder until the block ends."""
    engine = await LocalEngine.start(EngineSettings(model=str(folder), threads=2))
    try:
        with TemporaryDirectory(prefix="penstock-media-") as made:
            async with opened(store_settings(Path(made))) as store:
                fetcher = Fetcher(AllowList(allowed))
                state = SharedState(
                    Attachments(store.files, fetcher),
                    store.sessions,
                    media=MediaAccess(media, fetcher),
                )
                runners = load_runners(files_at(folder, MODEL), engine, state=state)
                try:
                    async with serving(
                        models={MODEL: runners}, store=store, engine=engine
                    ) as server:
                        yield MediaServing(server, engine)
                finally:
                    await runners.close()
    finally:
        await engine.close()


def data_url(data: bytes, mime_type: str = "image/png") -> str:
    """Return a data: URL."""
    return f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
