"""Files of a request: stored, and shown to the model as previews.

A file part becomes a text that names the file and, where it is text, shows the beginning of it.
Base64 and binary content never reach the context.
"""

from __future__ import annotations

import codecs
import mimetypes
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from penstock.base.errors import InvalidRequest, NotFound
from penstock.dialog import File, GenerateRequest, Message, Part, Text
from penstock.store.client_names import NO_NAME, safe_name
from penstock.store.records import FileSource, NewFile, StoredFile

if TYPE_CHECKING:
    from penstock.fetch import Fetched

MAX_FILES: Final = 64
"""In one request: each is read, and perhaps fetched, before the answer can begin."""
MAX_FETCHED_BYTES: Final = 128 * 1024 * 1024
"""Of all the files that one request has fetched: it is itself no longer than their addresses."""
MAX_PREVIEW_CHARS: Final = 4096
MAX_REQUEST_CHARS: Final = 32768
LONGEST_CHAR_BYTES: Final = 4
# Tells a preview of a file, and whether there is more of it.
HEAD_BYTES: Final = (MAX_PREVIEW_CHARS + 2) * LONGEST_CHAR_BYTES
TEXT_TYPE: Final = "text/plain"
BINARY_TYPE: Final = "application/octet-stream"
PURPOSE: Final = "user_data"
SOURCE: Final = FileSource("input_file")
MAX_SHOWN_CHARS: Final = 80
# The type is a client's, and goes into headers when the file is downloaded.
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)
# Control characters that text has; any other one makes it binary.
IN_TEXT: Final = frozenset("\t\n\r\f\v\x1b")


class FileStore(Protocol):
    """What is asked of `store.Files`."""

    async def create(self, new: NewFile) -> StoredFile: ...

    async def get(self, id: str) -> StoredFile | None: ...

    async def open(self, id: str) -> AsyncGenerator[bytes, None]: ...


class UrlFetcher(Protocol):
    """What is asked of `fetch.Fetcher`."""

    async def fetch(self, url: str, *, field: str) -> Fetched: ...


class Attachments:
    """Turns the file parts of requests into texts."""

    def __init__(self, files: FileStore, fetcher: UrlFetcher) -> None:
        self._files = files
        self._fetcher = fetcher

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """The request without file parts; what came inline or by URL is stored.

        Raises NotFound (`file_not_found`) for an unknown id, what the fetcher and the store raise,
        and InvalidRequest for too many files.
        """
        return await self._shown(request, _Stored(self._files, request.session))

    async def preview(self, request: GenerateRequest) -> GenerateRequest:
        """The same, and nothing is stored: for counting tokens."""
        return await self._shown(request, None)

    async def _shown(self, request: GenerateRequest, keep: _Stored | None) -> GenerateRequest:
        budget = _Budget()
        messages = []
        for index, message in enumerate(request.messages or ()):
            parts: list[Part] = []
            for number, part in enumerate(message.parts):
                if isinstance(part, File):
                    where = request.part_path(index, number)
                    part = await self._text(part, where, budget, keep)
                parts.append(part)
            messages.append(Message(message.role, tuple(parts), message.name))
        return msgspec.structs.replace(request, messages=tuple(messages))

    async def _text(self, part: File, where: str, budget: _Budget, keep: _Stored | None) -> Text:
        budget.count_file(where)
        if part.file_id is not None:
            return await self._of_stored(part.file_id, where, budget)
        if part.url is not None:
            fetched = await self._fetcher.fetch(part.url, field=where)
            budget.count_fetched(len(fetched.data), where)
            name, data = part.name or fetched.name, fetched.data
            mime_type = part.mime_type or fetched.mime_type
        else:
            assert part.data is not None, "a file has an id, an address or content"
            name, data, mime_type = part.name, part.data, part.mime_type
        beginning = text_of(data)
        known = _Known.of(name, mime_type, beginning is not None, len(data))
        if keep is not None:
            await keep.create(known, data)
        return budget.show(known, beginning)

    async def _of_stored(self, file_id: str, where: str, budget: _Budget) -> Text:
        stored = await self._files.get(file_id)
        if stored is None:
            raise NotFound(
                f"`{where}`: there is no file {file_id[:MAX_SHOWN_CHARS]!r}, or it has expired",
                field=where,
                code="file_not_found",
            )
        known = _Known(stored.name, stored.mime_type, stored.size_bytes)
        beginning = None if stored.elided else text_of(await self._beginning(file_id))
        return budget.show(known, beginning)

    async def _beginning(self, file_id: str) -> bytes:
        """Of a stored file, as much as `text_of` looks at, and more where there is more."""
        head = bytearray()
        async with aclosing(await self._files.open(file_id)) as pieces:
            async for piece in pieces:
                head += piece
                if len(head) > HEAD_BYTES:
                    break
        return bytes(head)


def text_of(data: bytes) -> str | None:
    """The beginning of UTF-8 text, at most one character more than a preview; None for what is
    binary as far as that."""
    head = data[:HEAD_BYTES]
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        text = decoder.decode(head, final=len(head) == len(data))
    except UnicodeDecodeError:
        return None
    if any(char < " " and char not in IN_TEXT for char in text):
        return None
    return text[: MAX_PREVIEW_CHARS + 1]


@dataclass(frozen=True, slots=True)
class _Known:
    """What the model is told of any file."""

    name: str
    mime_type: str
    size_bytes: int

    @classmethod
    def of(cls, name: str | None, mime_type: str | None, is_text: bool, size_bytes: int) -> _Known:
        """Of a file that may have come without a name or a type, or with one that is none."""
        name = safe_name(name) if name else None
        if mime_type is None or not _MEDIA_TYPE.fullmatch(mime_type):
            guessed = mimetypes.guess_type(name)[0] if name else None
            mime_type = guessed or (TEXT_TYPE if is_text else BINARY_TYPE)
        if name is None:
            name = NO_NAME + (mimetypes.guess_extension(mime_type) or "")
        return cls(name, mime_type, size_bytes)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where the files of one request go."""

    files: FileStore
    session: str | None

    async def create(self, known: _Known, data: bytes) -> None:
        await self.files.create(
            NewFile(
                name=known.name,
                data=data,
                source=SOURCE,
                purpose=PURPOSE,
                mime_type=known.mime_type,
                session=self.session,
            )
        )


@dataclass(slots=True)
class _Budget:
    """What the files of one request have taken, and what their previews may still take."""

    left_chars: int = MAX_REQUEST_CHARS
    num_files: int = 0
    fetched_bytes: int = 0

    def count_file(self, where: str) -> None:
        self.num_files += 1
        if self.num_files > MAX_FILES:
            raise InvalidRequest(f"a request may have at most {MAX_FILES} files", field="messages")

    def count_fetched(self, size_bytes: int, where: str) -> None:
        self.fetched_bytes += size_bytes
        if self.fetched_bytes > MAX_FETCHED_BYTES:
            raise InvalidRequest(
                f"the files that a request has fetched may have at most {MAX_FETCHED_BYTES} bytes",
                field=where,
                code="url_too_large",
            )

    def show(self, known: _Known, beginning: str | None) -> Text:
        """The text in place of a file. It has no id in it, so that a conversation whose client
        sends the same file anew with each turn is the same prompt, and found in the cache."""
        head = f"{known.name}: {known.mime_type}, {known.size_bytes} bytes"
        if beginning is None:
            return Text(f"[File {head}, not shown]")
        shown = beginning[: min(MAX_PREVIEW_CHARS, self.left_chars)]
        self.left_chars -= len(shown)
        end = "[end of file]" if len(shown) == len(beginning) else "[the rest is not shown]"
        return Text(f"[File {head}]\n{shown}\n{end}")
