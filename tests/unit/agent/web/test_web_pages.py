"""Pages: fetched from a loopback web, read by real child processes."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.agent.web import page_workers
from penstock.agent.web.domains import DomainFilter
from penstock.agent.web.page_process import PageJob, decode, read_page
from penstock.agent.web.page_workers import PageFailed, PageWorkers
from penstock.agent.web.pages import PAGE_LIMITS, PageReader
from penstock.fetch import AllowList
from tests.support.small_web import (
    LOOPBACK,
    article,
    content,
    moved,
    silence,
    small_web,
)

ANY = DomainFilter()
MAX_CHARS = 10_000
SENTENCE = "A penstock carries water from the reservoir to the turbine."
# The extraction library takes half a minute for it.
MANY_ATTRIBUTES = "<div " + " ".join(f"a{n}=1" for n in range(100_000)) + ">x</div>"


class Names:
    """A resolver with scripted addresses by name."""

    def __init__(self, **addresses: str) -> None:
        self._addresses = addresses

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return [self._addresses[host.partition(".")[0]]]


@pytest.fixture
async def reader() -> AsyncIterator[PageReader]:
    reader = PageReader(AllowList(LOOPBACK))
    yield reader
    reader.close()
    await reader.wait_closed()


async def read(reader: PageReader, url: str, domains: DomainFilter = ANY) -> str:
    return (await reader.read(url, domains, MAX_CHARS)).text


async def failure(reader: PageReader, url: str, domains: DomainFilter = ANY) -> str:
    with pytest.raises(PageFailed) as caught:
        await reader.read(url, domains, MAX_CHARS)
    return caught.value.message


async def test_main_text_of_a_page_is_extracted(reader: PageReader) -> None:
    async with small_web(a=content(article(SENTENCE * 5))) as web:
        text = await read(reader, web.url("/a"))
    assert SENTENCE in text and "A heading" in text
    assert "Menu entry" not in text and "Imprint" not in text


async def test_compressed_page_is_read(reader: PageReader) -> None:
    page = gzip.compress(article(SENTENCE).encode())
    async with small_web(a=content(page, "text/html", "content-encoding: gzip")) as web:
        assert SENTENCE in await read(reader, web.url("/a"))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"a": [1, "<b>"]}', "application/json"),
        ('{"a": 1}', "application/ld+json; charset=utf-8"),
        ("<b>\n  indented", "text/plain"),
        ("a,b\n1,2", "text/csv"),
        ("plain text", None),
    ],
)
async def test_texts_are_returned_as_they_are(
    reader: PageReader, body: str, kind: str | None
) -> None:
    async with small_web(a=content(body, kind)) as web:
        assert await read(reader, web.url("/a")) == body


async def test_page_without_a_type_is_recognized(reader: PageReader) -> None:
    async with small_web(a=content("\n" + article(SENTENCE), None)) as web:
        assert "<p>" not in await read(reader, web.url("/a"))


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"\x89PNG\r\n", "image/png", "not image/png"),
        (b"%PDF-1.7", "application/pdf", "not application/pdf"),
        (b"\0\1\2", "application/octet-stream", "not application/octet-stream"),
        (b"\x7fELF\0\0\1", "text/plain", "binary file"),
        (b"\x7fELF\0\0\1", None, "binary file"),
        (b"", "text/html", "no text"),
        (b"\x89PNG\0", "text/html", "binary file"),
        (b" \n ", "text/plain", "no text"),
        (b"x", "x\x9b31m/y", "not this type"),
    ],
)
async def test_pages_that_are_no_text_are_refused(
    reader: PageReader, body: bytes, kind: str | None, message: str
) -> None:
    headers = b"" if kind is None else b"content-type: " + kind.encode("latin-1") + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\n" + headers + b"content-length: %d\r\n\r\n" % len(body)
    async with small_web(a=head + body) as web:
        assert message in await failure(reader, web.url("/a"))


async def test_long_page_is_cut(reader: PageReader) -> None:
    async with small_web(a=content("word " * 100_000, "text/plain")) as web:
        page = await reader.read(web.url("/a"), ANY, 1000)
        assert len(page.text) <= 1000 and page.is_cut
        page = await reader.read(web.url("/a"), ANY, 1_000_000)
        assert not page.is_cut


async def test_huge_page_is_refused(reader: PageReader) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n")
        while True:
            writer.write(b"<p>x" * 65536)
            await writer.drain()

    async with small_web(a=flood, b=content(gzip.compress(bytes(100 * 1024 * 1024)), "text/html",
                                            "content-encoding: gzip")) as web:  # fmt: skip
        for path in ("/a", "/b"):
            assert f"larger than {PAGE_LIMITS.max_bytes}" in await failure(reader, web.url(path))


async def test_silent_server_is_left(reader: PageReader) -> None:
    limits = PAGE_LIMITS.__class__(timeout_s=0.2)
    async with small_web(a=silence) as web:
        message = await failure(PageReader(AllowList(LOOPBACK), limits), web.url("/a"))
    assert "within 0.2 s" in message


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 200_000 + SENTENCE,
        "<b>" * 300_000 + SENTENCE,
        "<table>" + "<tr><td>" * 20_000 + SENTENCE,
        "<" * 1_000_000,
        "&" * 1_000_000 + "&#0;&#xd800;&#x110000;",
        "<!--" * 200_000,
        "<script>" + "x" * 3_000_000,
        "<a href='" + "x" * 3_000_000,
        "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><p>&b;</p>",
        "<?xml version='1.0' encoding='utf-16'?><html><p>" + SENTENCE,
        "\ud7ff\uffff\0\x1b[31m<p>\u202e" + SENTENCE,
    ],
)
async def test_hostile_html_ends_in_text_or_an_error(reader: PageReader, page: str) -> None:
    async with small_web(a=content(page), b=content(article(SENTENCE))) as web:
        try:
            text = await read(reader, web.url("/a"))
        except PageFailed as error:
            text = error.message
        assert len(text) <= MAX_CHARS and "\0" not in text and "\u202e" not in text
        assert SENTENCE in await read(reader, web.url("/b"))


async def test_external_entities_are_not_loaded(reader: PageReader) -> None:
    page = "<!DOCTYPE x [<!ENTITY f SYSTEM 'file:///etc/passwd'>]><p>before &f; after</p>"
    async with small_web(
        a=content(page, "application/xhtml+xml"), b=content(page, "text/html")
    ) as web:
        for path in ("/a", "/b"):
            try:
                text = await read(reader, web.url(path))
            except PageFailed as error:
                text = error.message
            assert "root:" not in text
        assert len(web.seen) == 2


async def test_page_that_takes_too_long_ends_its_process_only() -> None:
    reader = PageReader(AllowList(LOOPBACK), page_timeout_s=1.0)
    async with small_web(a=content(MANY_ATTRIBUTES), b=content(article(SENTENCE))) as web:
        assert SENTENCE in await read(reader, web.url("/b"))
        slow = asyncio.create_task(failure(reader, web.url("/a")))
        assert SENTENCE in await read(reader, web.url("/b"))
        assert "too long" in await slow
        assert SENTENCE in await read(reader, web.url("/b"))
    reader.close()
    await reader.wait_closed()


async def test_event_loop_runs_while_a_hostile_page_is_read() -> None:
    reader = PageReader(AllowList(LOOPBACK), page_timeout_s=1.0)
    async with small_web(a=content(MANY_ATTRIBUTES)) as web:
        slow = asyncio.create_task(failure(reader, web.url("/a")))
        turns = 0
        while not slow.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert "too long" in slow.result() and turns > 10
    reader.close()
    await reader.wait_closed()


def job(text: str) -> PageJob:
    return PageJob(text.encode(), "html", None, MAX_CHARS)


async def only_process(workers: PageWorkers) -> asyncio.subprocess.Process:
    """The process of the only worker, once there is one."""
    while not workers._busy | set(workers._idle):
        await asyncio.sleep(0)
    (worker,) = workers._busy | set(workers._idle)
    return worker._process


async def test_cancelled_reading_ends_the_process() -> None:
    workers = PageWorkers()
    await workers.text_of(job(SENTENCE))
    process = await only_process(workers)
    task = asyncio.create_task(workers.text_of(job(MANY_ATTRIBUTES)))
    while not workers._busy:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.returncode == -signal.SIGKILL
    assert (await workers.text_of(job(SENTENCE))).text == SENTENCE
    workers.close()
    await workers.wait_closed()


async def test_close_ends_busy_and_idle_processes() -> None:
    workers = PageWorkers()
    slow = asyncio.create_task(workers.text_of(job(MANY_ATTRIBUTES)))
    process = await only_process(workers)
    await workers.text_of(job(SENTENCE))
    (idle,) = workers._idle
    workers.close()
    with pytest.raises(PageFailed):
        await slow
    assert await process.wait() == await idle._process.wait() == -signal.SIGKILL
    with pytest.raises(PageFailed, match="shutting down"):
        await workers.text_of(job(SENTENCE))
    workers.close()
    await workers.wait_closed()


async def test_dead_idle_process_is_replaced() -> None:
    workers = PageWorkers()
    await workers.text_of(job(SENTENCE))
    process = await only_process(workers)
    os.kill(process.pid, signal.SIGKILL)
    assert (await workers.text_of(job(SENTENCE))).text == SENTENCE
    assert (await only_process(workers)).pid != process.pid
    workers.close()
    await workers.wait_closed()


async def test_process_that_dies_with_a_page_fails_the_page_only() -> None:
    workers = PageWorkers()
    task = asyncio.create_task(workers.text_of(job(MANY_ATTRIBUTES)))
    process = await only_process(workers)
    (worker,) = workers._busy
    while not worker._ready:
        await asyncio.sleep(0.01)
    process.kill()
    with pytest.raises(PageFailed, match="too complex"):
        await task
    assert (await workers.text_of(job(SENTENCE))).text == SENTENCE
    workers.close()
    await workers.wait_closed()


async def test_process_that_cannot_start_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(page_workers, "MODULE", "penstock.agent.web.missing")
    workers = PageWorkers()
    with pytest.raises(PageFailed, match="this server cannot read pages"):
        await workers.text_of(job(SENTENCE))
    assert "exit code is 1" in caplog.text


async def test_process_ends_with_its_pipe() -> None:
    workers = PageWorkers()
    await workers.text_of(job(SENTENCE))
    process = await only_process(workers)
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("data", "charset", "kind", "text"),
    [
        ("é".encode(), None, "text", "é"),
        ("é".encode("cp1252"), None, "text", "é"),
        ("é€".encode("cp1252"), "iso-8859-1", "text", "é€"),
        ("日本".encode("shift_jis"), "Shift_JIS", "text", "日本"),
        ("日本".encode("utf-16"), None, "text", "日本"),
        (b"\xef\xbb\xbfx", "latin-1", "text", "x"),
        (b"<meta charset='windows-1251'>\xcf", None, "html", "<meta charset='windows-1251'>П"),
        (b"charset=windows-1251 \xc3\xa9", None, "text", "charset=windows-1251 é"),
        (b"+AGE-", "utf-7", "text", "+AGE-"),
        (b"xn--a", "punycode", "text", "xn--a"),
        (b"\\x41", "unicode_escape", "text", "\\x41"),
        (b"x", "zip", "text", "x"),
        (b"x", "no such\0charset", "text", "x"),
        (b"<meta charset=hex>x", None, "html", "<meta charset=hex>x"),
        (b"\xff\xfe\xff", None, "text", "\ufffd"),
    ],
)
def test_pages_are_decoded_by_the_encodings_of_the_web(
    data: bytes, charset: str | None, kind: str, text: str
) -> None:
    assert decode(data, charset, kind) == text


def test_escape_codes_are_removed_from_texts() -> None:
    page = read_page(PageJob(b"a\x1b[31mb\x7f", "text", None, 100))
    assert page.text == "a[31mb"


# Rules for addresses, as in the tests of `fetch`, through the reader.


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "data:text/plain,x",
        "javascript:x",
        "ftp://files.test/",
        "http://user:pw@127.0.0.1/",
        "http://127.0.0.1\0.example.com/",
        "http://127.0.0.1/\0",
        "http://xn--zz/",
        "//127.0.0.1/",
        "127.0.0.1",
        "",
        "x" * 10_000,
    ],
)
async def test_unusable_urls_are_refused(reader: PageReader, url: str) -> None:
    assert "must be an http: or https: URL" in await failure(reader, url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "2130706433",
     "0x7f.1", "0", "127.0.0.1.", "[64:ff9b::7f00:1]"],
)  # fmt: skip
async def test_private_addresses_are_refused_in_every_notation(host: str) -> None:
    reader = PageReader(AllowList())
    async with small_web(a=content(SENTENCE)) as web:
        message = await failure(reader, web.url("/a", host))
    assert ("not public" in message or "could not be fetched" in message) and not web.seen


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "169.254.169.254", "::ffff:192.168.0.1", "fd00::1"]
)
async def test_name_with_a_private_address_is_refused(address: str) -> None:
    reader = PageReader(AllowList(LOOPBACK), resolve=Names(page=address))
    assert "not public" in await failure(reader, "http://page.test/")


@pytest.mark.parametrize(
    "location",
    ["http://inside.test/", "http://10.0.0.1/", "http://[::ffff:10.0.0.1]/", "//169.254.169.254/"],
)
async def test_redirect_to_a_private_address_is_refused(location: str) -> None:
    addresses = {"page": "127.0.0.1", "inside": "192.168.0.1"}

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [addresses.get(host.partition(".")[0], host.strip("[]"))]

    reader = PageReader(AllowList(LOOPBACK), resolve=resolve)
    async with small_web(a=moved(location)) as web:
        assert "not public" in await failure(reader, web.url("/a", "page.test"))
    assert len(web.seen) == 1


async def test_redirect_out_of_the_allowed_domains_is_refused() -> None:
    reader = PageReader(AllowList(LOOPBACK), resolve=Names(good="127.0.0.1", evil="127.0.0.1"))
    domains = DomainFilter(allowed=["good.test"])
    async with small_web(secret=content(SENTENCE, "text/plain")) as web:
        web.pages["/a"] = moved(web.url("/secret", "evil.test"))
        web.pages["/b"] = moved(web.url("/secret", "good.test"))
        assert "not allowed" in await failure(reader, web.url("/a", "good.test"), domains)
        assert await read(reader, web.url("/b", "good.test"), domains) == SENTENCE
        assert "must be" in await failure(reader, web.url("/secret", "evil.test"), domains)
    reader.close()
    await reader.wait_closed()
    assert [head.split(" ")[1] for head in web.seen] == ["/a", "/b", "/secret"]


async def test_pages_are_fetched_without_credentials_and_referrer(reader: PageReader) -> None:
    async with small_web(a=content(SENTENCE, "text/plain")) as web:
        await read(reader, web.url("/a"))
    head = web.seen[0].lower()
    assert not any(name in head for name in ("cookie", "authorization", "referer"))


async def test_statuses_of_pages_are_reported(reader: PageReader) -> None:
    async with small_web() as web:
        assert "status 404" in await failure(reader, web.url("/missing"))


def test_reader_rejects_invalid_networks() -> None:
    with pytest.raises(ValueError):
        PageReader(AllowList(["localhost"]))
