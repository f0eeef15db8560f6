"""A web of scripted pages on loopback: each path has an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
LOOPBACK = ("127.0.0.1",)


@dataclass
class SmallWeb:
    """A web server. `pages`: answers by path without query; other paths are 404. `seen`: the
    request heads that it received."""

    port: int = 0
    pages: dict[str, Answer] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.seen.append(head)
            path = head.split(" ")[1].partition("?")[0]
            answer = self.pages.get(path, b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def small_web(**pages: Answer) -> AsyncIterator[SmallWeb]:
    """Serve pages: the keyword `name` is the path /name."""
    web = SmallWeb(pages={f"/{name}": answer for name, answer in pages.items()})
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    async with server:
        yield web


def content(body: str | bytes, kind: str | None = "text/html", *headers: str) -> bytes:
    """An answer with a body."""
    data = body.encode() if isinstance(body, str) else body
    lines = [*headers, f"content-length: {len(data)}"]
    if kind is not None:
        lines.append(f"content-type: {kind}")
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + data


def moved(location: str) -> bytes:
    return f"HTTP/1.1 302 Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()


async def silence(writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await writer.drain()
    await asyncio.Event().wait()


def article(text: str) -> str:
    """A page with navigation, a main text and a footer."""
    return (
        "<!doctype html><html><head><title>A page</title></head><body>"
        "<nav><ul><li><a href='/x'>Menu entry</a></li></ul></nav>"
        f"<article><h1>A heading</h1><p>{text}</p></article>"
        "<footer>Imprint</footer></body></html>"
    )
