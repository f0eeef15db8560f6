"""Fetches from real servers on loopback. The only test double is the resolver of host names."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trustme

from penstock.base.errors import Overloaded, ServiceError
from penstock.fetch import AllowList, Fetched, Fetcher, FetchLimits

LOOPBACK = ["127.0.0.1", "::1"]
TLS_PURPOSES = (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


@dataclass
class Origin:
    """A web server. `seen`: the request heads that it received."""

    port: int = 0
    seen: list[str] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def origin(*answers: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
    """Serve one answer per connection, in order; further connections get the last one."""
    server_of = Origin()
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_of.seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    server_of.port = server.sockets[0].getsockname()[1]
    async with server:
        yield server_of


def content(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in (*headers, f"content-length: {len(body)}"))
    return OK + lines.encode() + b"\r\n" + body


def moved(location: str, status: int = 302) -> bytes:
    head = f"HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
    return head.encode()


class Names:
    """A resolver with scripted results: each name has a list of them, returned in turn."""

    def __init__(self, **answers: list[Sequence[str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.answers[host.split(".")[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def fetch(
    url: str, *, allow: Sequence[str] = LOOPBACK, names: Names | None = None, **limits: float
) -> Fetched:
    bounds = FetchLimits(**limits)  # type: ignore[arg-type]
    if names is None:
        return await Fetcher(AllowList(allow), bounds).fetch(url, field="image_url")
    return await Fetcher(AllowList(allow), bounds, names).fetch(url, field="image_url")


async def refused(url: str, **options: object) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await fetch(url, **options)  # type: ignore[arg-type]
    error = caught.value
    assert error.status == 400 and error.field == "image_url"
    assert error.message
    if "127.0.0.1" not in url:
        assert "127.0.0.1" not in error.message and "10.0.0" not in error.message
    return error


async def test_content_comes_with_its_type_and_name() -> None:
    async with origin(content(b"a,b", "Content-Type: text/csv; charset=utf-8")) as web:
        fetched = await fetch(web.url("/files/a%20b.csv?x=1"))
    assert fetched == Fetched(b"a,b", "text/csv", "a b.csv", "utf-8")
    head = web.seen[0].lower()
    assert head.startswith("get /files/a%20b.csv?x=1 http/1.1\r\n")
    assert f"\r\nhost: 127.0.0.1:{web.port}\r\n" in head and "accept-encoding: identity" in head


async def test_name_is_resolved_once_and_sent_as_host() -> None:
    names = Names(files=[["127.0.0.1"]])
    async with origin(content(b"x")) as web:
        await fetch(web.url(host="files.example"), names=names)
    assert names.asked == ["files.example"]
    assert f"\r\nhost: files.example:{web.port}\r\n" in web.seen[0].lower()


async def test_checked_address_is_connected_to() -> None:
    """DNS rebinding: the second result would be a local address, but the name is resolved once."""
    names = Names(files=[["127.0.0.1"], ["10.0.0.1"]])
    async with origin(content(b"x")) as web:
        fetched = await fetch(web.url(host="files.example"), names=names)
    assert fetched.data == b"x" and names.asked == ["files.example"]


@pytest.mark.parametrize(
    "addresses", [["10.0.0.1"], ["::ffff:10.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["169.254.169.254"]]
)
async def test_name_with_any_forbidden_address_is_rejected(addresses: list[str]) -> None:
    async with origin(content(b"x")) as web:
        url = web.url(host="files.example")
        error = await refused(url, names=Names(files=[addresses]))
    assert error.code == "url_not_allowed" and not web.seen


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0"]
)
async def test_this_machine_is_rejected_in_every_notation(host: str) -> None:
    async with origin(content(b"x")) as web:
        error = await refused(web.url(host=host), allow=())
    assert error.code == "url_not_allowed" and not web.seen


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(status: int) -> None:
    async with (
        origin(content(b"there", "Content-Type: text/plain")) as there,
        origin(moved(there.url("/b.txt"), status)) as here,
    ):
        fetched = await fetch(here.url("/a"))
    assert fetched == Fetched(b"there", "text/plain", "b.txt")


async def test_relative_redirects_stay_on_the_host() -> None:
    async with origin(moved("../c"), content(b"c")) as web:
        assert (await fetch(web.url("/a/b"))).name == "c"
    assert web.seen[1].startswith("GET /c ")


async def test_every_redirect_is_checked() -> None:
    names = Names(outside=[["127.0.0.1"]], inside=[["10.0.0.1"]])
    async with origin(moved("http://inside.example/secret")) as web:
        error = await refused(web.url(host="outside.example"), names=names)
    assert error.code == "url_not_allowed" and names.asked == ["outside.example", "inside.example"]
    assert "the address of the host to which it redirects is not public" in error.message


async def test_redirect_to_the_same_name_is_resolved_and_checked_again() -> None:
    names = Names(files=[["127.0.0.1"], ["192.168.0.1"]])
    async with origin(moved("/again")) as web:
        error = await refused(web.url(host="files.example"), names=names)
    assert error.code == "url_not_allowed" and len(web.seen) == 1


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://x/", "data:,x"])
async def test_redirect_to_another_scheme_is_rejected(location: str) -> None:
    async with origin(moved(location)) as web:
        assert (await refused(web.url())).code == "url_not_allowed"


async def test_there_are_at_most_three_redirects() -> None:
    async with origin(moved("/1"), moved("/2"), moved("/3"), content(b"end")) as web:
        assert (await fetch(web.url())).data == b"end"
    async with origin(moved("/on")) as web:
        assert (await refused(web.url())).code == "url_unreachable"
    assert len(web.seen) == 4


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://files.example/x",
        "unix:///run/x",
        "http://",
        "http:///x",
        "//files.example/x",
        "files.example",
        "http://[::1",
        "http://user:secret@files.example/",
        "http://files.example:99999/",
        "http://xn--/",
        "http://xn--zz/",
        "",
    ],
)
async def test_other_schemes_and_invalid_urls_are_rejected(url: str) -> None:
    error = await refused(url, names=Names(files=[["127.0.0.1"]]))
    assert error.code == "url_not_allowed" and "secret" not in error.message


async def test_declared_size_over_the_limit_is_rejected_before_the_body() -> None:
    async with origin(OK + b"content-length: 101\r\n\r\n") as web:
        assert (await refused(web.url(), max_bytes=100)).code == "url_too_large"


async def test_endless_body_is_cut_off_at_the_limit() -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + b"\r\n")
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with origin(flood) as web:
        assert (await refused(web.url(), max_bytes=100_000)).code == "url_too_large"
    assert sent < 64 * 1024 * 1024


async def test_concurrent_bodies_share_a_limit() -> None:
    waiting, leave = asyncio.Event(), asyncio.Event()

    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-length: 1000\r\n\r\n" + b"x" * 600)
        await writer.drain()
        waiting.set()
        await leave.wait()
        writer.write(b"x" * 400)

    fetcher = Fetcher(AllowList(LOOPBACK), FetchLimits(max_buffered_bytes=1100))
    async with origin(half, content(b"x" * 600)) as web:
        first = asyncio.create_task(fetcher.fetch(web.url(), field="f"))
        await waiting.wait()
        while fetcher._buffered_bytes < 600:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await fetcher.fetch(web.url(), field="f")
        leave.set()
        assert len((await first).data) == 1000
        assert len((await fetcher.fetch(web.url(), field="f")).data) == 600


async def test_slow_body_times_out() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.005)

    async with origin(drip) as web:
        error = await refused(web.url(), timeout_s=0.5)
    assert error.code == "url_unreachable" and "within 0.5 s" in error.message


async def test_silent_server_times_out() -> None:
    async def silence(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with origin(silence) as web:
        assert (await refused(web.url(), timeout_s=0.1)).code == "url_unreachable"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 304 No\r\n\r\n",
        b"HTTP/1.1 302 No\r\ncontent-length: 0\r\n\r\n",
        OK + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        OK + b"content-length: 10\r\n\r\nabc",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
async def test_responses_without_content_are_unreachable(answer: bytes) -> None:
    async with origin(answer) as web:
        assert (await refused(web.url())).code == "url_unreachable"


async def test_closed_port_and_unknown_name_are_unreachable() -> None:
    async with origin(content(b"x")) as web:
        url = web.url()
    assert (await refused(url)).code == "url_unreachable"

    async def nowhere(host: str, port: int) -> Sequence[str]:
        raise OSError("secret resolver text")

    with pytest.raises(ServiceError) as caught:
        await Fetcher(AllowList(), resolve=nowhere).fetch("http://x.example/", field="f")
    assert caught.value.code == "url_unreachable" and "secret" not in caught.value.message


async def test_silent_name_servers_block_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        answered.wait()
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    fetcher = Fetcher(AllowList(), FetchLimits(timeout_s=0.1))
    try:
        fetches = [fetcher.fetch(f"http://n{n}.example/", field="f") for n in range(64)]
        errors = await asyncio.gather(*fetches, return_exceptions=True)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 20) == "free"
    finally:
        answered.set()
    assert {getattr(error, "code", None) for error in errors} == {"url_unreachable"}


async def test_next_address_is_tried_if_one_does_not_answer() -> None:
    names = Names(files=[["127.0.0.2", "127.0.0.1"]])
    async with origin(content(b"x")) as web:
        url = web.url(host="files.example")
        fetched = await fetch(url, names=names, allow=["127.0.0.0/8"])
    assert fetched.data == b"x"


async def test_data_urls_are_decoded_and_limited() -> None:
    assert await fetch("data:text/plain;base64,aGk=") == Fetched(b"hi", "text/plain", None)
    assert (await refused("data:;base64,aGk=", max_bytes=1)).code == "url_too_large"
    assert (await refused("data:;base64,%")).code == "url_not_allowed"


async def test_tls_checks_the_name_and_connects_to_the_address() -> None:
    authority = trustme.CA()
    server_tls, client_tls = (ssl.create_default_context(p) for p in TLS_PURPOSES)
    authority.issue_cert("files.example").configure_cert(server_tls)
    authority.configure_trust(client_tls)
    asked: list[str | None] = []
    server_tls.sni_callback = lambda _, name, __: asked.append(name)
    names = Names(files=[["127.0.0.1"]], other=[["127.0.0.1"]])
    fetcher = Fetcher(AllowList(LOOPBACK), resolve=names, tls=lambda: client_tls)
    async with origin(content(b"x"), tls=server_tls) as web:
        url = web.url(host="files.example").replace("http:", "https:")
        assert (await fetcher.fetch(url, field="f")).data == b"x"
        with pytest.raises(ServiceError) as caught:  # a certificate for another name
            await fetcher.fetch(url.replace("files", "other"), field="f")
    assert caught.value.code == "url_unreachable" and asked == ["files.example", "other.example"]


async def test_abandoned_fetch_closes_its_connection() -> None:
    closed = asyncio.Event()
    begun = asyncio.Event()

    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(until_closed, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        task = asyncio.create_task(fetch(f"http://127.0.0.1:{port}/"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 30)


def zipped(body: bytes) -> bytes:
    return content(gzip.compress(body, mtime=0), "content-encoding: gzip")


async def fetch_zipped(answer: bytes, **limits: float) -> tuple[Fetched, str]:
    bounds = FetchLimits(**limits)  # type: ignore[arg-type]
    fetcher = Fetcher(AllowList(LOOPBACK), bounds, encodings=("gzip",))
    async with origin(answer) as web:
        fetched = await fetcher.fetch(web.url(), field="url")
    assert fetcher._buffered_bytes == 0
    return fetched, web.seen[0].lower()


async def test_accepted_gzip_is_decompressed() -> None:
    body = b"text " * 100_000
    fetched, head = await fetch_zipped(zipped(body))
    assert fetched.data == body and "accept-encoding: gzip\r\n" in head


async def test_plain_content_is_read_although_gzip_is_accepted() -> None:
    assert (await fetch_zipped(content(b"plain")))[0].data == b"plain"


async def test_gzip_bomb_is_cut_off_at_the_limit() -> None:
    with pytest.raises(ServiceError) as caught:
        await fetch_zipped(zipped(bytes(50_000_000)), max_bytes=1_000_000)
    assert caught.value.code == "url_too_large"


@pytest.mark.parametrize(
    "answer",
    [
        content(gzip.compress(b"text" * 1000, mtime=0)[:-12], "content-encoding: gzip"),
        content(b"no gzip", "content-encoding: gzip"),
        content(b"\x1b\x00", "content-encoding: br"),
        content(gzip.compress(b"x", mtime=0), "content-encoding: gzip, gzip"),
    ],
)
async def test_content_that_cannot_be_decompressed_is_unreachable(answer: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        await fetch_zipped(answer)
    assert caught.value.code == "url_unreachable"


async def test_hosts_of_url_and_redirects_are_checked() -> None:
    names = Names(outside=[["127.0.0.1"]], inside=[["127.0.0.1"]])
    fetcher = Fetcher(AllowList(LOOPBACK), FetchLimits(), names)
    asked: list[str] = []

    def allows_host(host: str) -> bool:
        asked.append(host)
        return host.startswith("outside.")

    async with origin(moved("http://INSIDE.example./")) as web:
        with pytest.raises(ServiceError) as caught:
            url = web.url(host="outside.example")
            await fetcher.fetch(url, field="url", allows_host=allows_host)
    assert caught.value.code == "url_not_allowed"
    assert asked == ["outside.example", "inside.example."] and names.asked == ["outside.example"]
