"""A child process that reads pages: `python -m penstock.agent.web.page_process`.

A hostile page may make the extraction library use too much time or memory in code that can neither
be stopped nor return an error, and that keeps other threads waiting. So this process turns the
bytes of pages into text.

The process writes an empty `PageText` when it is ready. It reads frames from standard input, one
`PageJob` each, and answers each with a frame: a `PageText`. A frame is a 4-byte little-endian
length and msgpack. The parent ends this process by closing the pipe, or kills it if a page takes
too long. The process ends by itself after `IDLE_S` seconds without a page.
"""

from __future__ import annotations

import codecs
import re
import resource
import select
import signal
import struct
import sys
import time
from io import FileIO
from typing import BinaryIO, Final, Literal

import msgspec

from penstock.agent.web.cleaning import clean_text

MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""Memory for a page, in addition to the memory of the process at its start."""
CPU_S: Final = 15
"""CPU time limit for one page, in case the parent has ended and cannot kill this process."""
OPEN_FILES: Final = 16
IDLE_S: Final = 60.0
LENGTH: Final = struct.Struct("<I")

_META_BYTES: Final = 4096
_META_CHARSET: Final = re.compile(rb"charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
# Python's names of the encodings that pages use. Other codecs may be slow or decode no text.
_ENCODINGS: Final = re.compile(
    r"ascii|utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp125\d|cp866|cp874|cp932|cp949|koi8-[ru]"
    r"|mac-roman|gb2312|gbk|gb18030|big5|big5hkscs|shift_jis|euc_jp|euc_kr|iso2022_jp|tis-620"
)
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FALLBACK_ENCODING: Final = "cp1252"
_BINARY: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class PageJob(msgspec.Struct, frozen=True):
    """A page to read.

    - `kind`: HTML, or text that is returned as it is.
    - `charset`: the encoding that the server named.
    - `max_chars`: maximum length of the text.
    """

    data: bytes
    kind: Literal["html", "text"]
    charset: str | None
    max_chars: int


class PageText(msgspec.Struct, frozen=True):
    """The text of a page.

    - `is_cut`: the page has more text.
    - `error`: why there is no text, "" if there is.
    """

    text: str = ""
    is_cut: bool = False
    error: str = ""


def encode_frame(message: PageJob | PageText) -> bytes:
    """Encode a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def read_page(job: PageJob) -> PageText:
    """Return the text of a page. Takes any bytes."""
    text = decode(job.data, job.charset, job.kind)
    if job.kind == "html" and "<" in text:
        text = html_text(text)
    elif _BINARY.search(text):
        return PageText(error="the page is a binary file")
    cleaned = clean_text(text, job.max_chars + 1)
    if not cleaned:
        return PageText(error="the page has no text")
    return PageText(cleaned[: job.max_chars], len(cleaned) > job.max_chars)


def html_text(page: str) -> str:
    """Return the main text of an HTML page as Markdown, or all its text if none is found."""
    import trafilatura

    page = page.replace("\0", "")
    main = trafilatura.extract(
        page, output_format="markdown", include_comments=False, include_tables=True
    )
    return main or trafilatura.html2txt(page) or ""


def decode(data: bytes, charset: str | None, kind: str) -> str:
    """Decode a page: by its byte order mark, the server's encoding, the encoding that the page
    names, or UTF-8 if it fits, in this order."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    named = _known_encoding(charset)
    if named is None and kind == "html" and (found := _META_CHARSET.search(data, 0, _META_BYTES)):
        named = _known_encoding(found[1].decode("ascii", "replace"))
    if named is not None:
        return data.decode(named, "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode(_FALLBACK_ENCODING, "replace")


def _known_encoding(name: str | None) -> str | None:
    try:
        known = codecs.lookup(name or "").name
    except (LookupError, ValueError):
        return None
    if not _ENCODINGS.fullmatch(known):
        return None
    # Browsers read these labels as their supersets.
    return {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030"}.get(known, known)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles them and ends this process
        signal.signal(number, signal.SIG_IGN)
    html_text("<p>Loads what the library imports late.</p>")
    _limit_resources()
    # Unbuffered, because `select` does not see bytes in a buffer.
    with open(sys.stdin.fileno(), "rb", buffering=0) as source:
        _serve(source, sys.stdout.buffer)


def _serve(source: FileIO, sink: BinaryIO) -> None:
    _send(sink, PageText())
    while select.select([source], [], [], IDLE_S)[0] and (body := _read(source)) is not None:
        _limit_time()
        try:
            page = read_page(msgspec.msgpack.decode(body, type=PageJob))
        except (MemoryError, RecursionError):
            page = PageText(error="the page is too complex")
        _send(sink, page)


def _send(sink: BinaryIO, page: PageText) -> None:
    sink.write(encode_frame(page))
    sink.flush()


def _limit_time() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_S, hard))


def _limit_resources() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(source: FileIO) -> bytes | None:
    head = _read_bytes(source, LENGTH.size)
    return None if head is None else _read_bytes(source, LENGTH.unpack(head)[0])


def _read_bytes(source: FileIO, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = source.read(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


if __name__ == "__main__":
    main()
