"""Stores the files of a request and replaces them by media or text previews.

A file that is an image, recording or video becomes a media part if the model reads that kind. Any
other file becomes a text that names the file and, for a text file, shows its beginning. Base64 and
binary content never reach the context.
"""

from __future__ import annotations

import codecs
import mimetypes
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from penstock.agent.media_urls import with_fetched_media
from penstock.base.errors import InvalidRequest, NotFound
from penstock.dialog import Audio, File, GenerateRequest, Image, Message, Part, Text, Video
from penstock.media.formats import kind_of
from penstock.models.media.prepared import MediaKind
from penstock.store.client_names import NO_NAME, safe_name
from penstock.store.records import FileSource, NewFile, StoredFile

if TYPE_CHECKING:
    from penstock.fetch import Fetched

MAX_FILES: Final = 64
"""Maximum number of files in one request. Each is read or fetched before the answer begins."""
MAX_FETCHED_BYTES: Final = 128 * 1024 * 1024
"""Maximum total bytes of the files that one request fetches by URL."""
MAX_PREVIEW_CHARS: Final = 4096
MAX_REQUEST_CHARS: Final = 32768
LONGEST_CHAR_BYTES: Final = 4
# Bytes that are enough for a preview and to decide whether the file has more text.
HEAD_BYTES: Final = (MAX_PREVIEW_CHARS + 2) * LONGEST_CHAR_BYTES
TEXT_TYPE: Final = "text/plain"
BINARY_TYPE: Final = "application/octet-stream"
PURPOSE: Final = "user_data"
SOURCE: Final = FileSource("input_file")
MAX_SHOWN_CHARS: Final = 80
# The media type from the client becomes an HTTP header when the file is downloaded.
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)
MEDIA_PARTS: Final[Mapping[MediaKind, type[Image | Audio | Video]]] = {
    "image": Image,
    "audio": Audio,
    "video": Video,
}
# Control characters that text files may have. A file with any other control character is binary.
IN_TEXT: Final = frozenset("\t\n\r\f\v\x1b")


class FileStore(Protocol):
    """The methods of `store.Files` that this module uses."""

    async def create(self, new: NewFile) -> StoredFile: ...

    async def get(self, id: str) -> StoredFile | None: ...

    async def open(self, id: str) -> AsyncGenerator[bytes, None]: ...


class UrlFetcher(Protocol):
    """The method of `fetch.Fetcher` that this module uses."""

    async def fetch(self, url: str, *, field: str) -> Fetched: ...


class Attachments:
    """Replaces the file parts of requests by media and text previews."""

    def __init__(self, files: FileStore, fetcher: UrlFetcher) -> None:
        self._files = files
        self._fetcher = fetcher

    async def attach(
        self, request: GenerateRequest, kinds: Collection[MediaKind] = ()
    ) -> GenerateRequest:
        """Store files given inline or by URL, and return the request with media and text previews
        in place of file parts and with the ids of its files. Media given by URL get their content,
        because a stored conversation may outlive the URL.

        `kinds`: the kinds of media that the model reads.

        Raises NotFound (`file_not_found`) for an unknown id, InvalidRequest for too many files, and
        the errors of the fetcher and the store.
        """
        keep = _Stored(self._files, request.session or request.container)
        shown = await self._shown(request, kinds, keep)
        return msgspec.structs.replace(shown, file_ids=tuple(dict.fromkeys(keep.ids)))

    async def preview(
        self, request: GenerateRequest, kinds: Collection[MediaKind] = ()
    ) -> GenerateRequest:
        """Return the request with media and text previews in place of file parts, without storing
        files. Used for counting tokens."""
        return await self._shown(request, kinds, None)

    async def _shown(
        self, request: GenerateRequest, kinds: Collection[MediaKind], keep: _Stored | None
    ) -> GenerateRequest:
        budget = _Budget(kinds)
        if keep is not None:
            request = await with_fetched_media(request, kinds, partial(self._fetch, budget))
        messages = []
        for index, message in enumerate(request.messages or ()):
            parts: list[Part] = []
            for number, part in enumerate(message.parts):
                if isinstance(part, File):
                    where = request.part_path(index, number)
                    part = await self._part(part, where, budget, keep)
                parts.append(part)
            messages.append(Message(message.role, tuple(parts), message.name))
        return msgspec.structs.replace(request, messages=tuple(messages))

    async def _fetch(self, budget: _Budget, url: str, where: str) -> tuple[bytes, str | None]:
        fetched = await self._fetcher.fetch(url, field=where)
        budget.count_fetched(len(fetched.data), where)
        return fetched.data, fetched.mime_type

    async def _part(self, part: File, where: str, budget: _Budget, keep: _Stored | None) -> Part:
        budget.count_file(where)
        if part.file_id is not None:
            shown = await self._of_stored(part.file_id, where, budget)
            if keep is not None:
                keep.ids.append(part.file_id)
            return shown
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
        kind = budget.media_kind(data, known) if beginning is None else None
        if kind is not None:
            return MEDIA_PARTS[kind](data=data, mime_type=known.mime_type)
        return budget.show(known, beginning)

    async def _of_stored(self, file_id: str, where: str, budget: _Budget) -> Part:
        stored = await self._files.get(file_id)
        if stored is None:
            raise NotFound(
                f"`{where}`: there is no file {file_id[:MAX_SHOWN_CHARS]!r}, or it has expired",
                field=where,
                code="file_not_found",
            )
        known = _Known(stored.name, stored.mime_type, stored.size_bytes)
        if stored.elided:
            return budget.show(known, None)
        head = await self._beginning(file_id, HEAD_BYTES)
        beginning = text_of(head)
        kind = budget.media_kind(head, known) if beginning is None else None
        if kind is None:
            return budget.show(known, beginning)
        budget.count_fetched(stored.size_bytes, where)
        data = await self._beginning(file_id, stored.size_bytes)
        return MEDIA_PARTS[kind](data=data, mime_type=known.mime_type)

    async def _beginning(self, file_id: str, size_bytes: int) -> bytes:
        """Return the beginning of a stored file, with more than `size_bytes` bytes if it has as
        many."""
        head = bytearray()
        async with aclosing(await self._files.open(file_id)) as pieces:
            async for piece in pieces:
                head += piece
                if len(head) > size_bytes:
                    break
        return bytes(head)


def text_of(data: bytes) -> str | None:
    """Return the beginning of a file as text, at most MAX_PREVIEW_CHARS + 1 characters, or None if
    the file is not UTF-8 text."""
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
    """The name, media type and size of a file, which the model sees."""

    name: str
    mime_type: str
    size_bytes: int

    @classmethod
    def of(cls, name: str | None, mime_type: str | None, is_text: bool, size_bytes: int) -> _Known:
        """Return the description of a file, with defaults if the name or type is missing or
        invalid."""
        name = safe_name(name) if name else None
        if mime_type is None or not _MEDIA_TYPE.fullmatch(mime_type):
            guessed = mimetypes.guess_type(name)[0] if name else None
            mime_type = guessed or (TEXT_TYPE if is_text else BINARY_TYPE)
        if name is None:
            name = NO_NAME + (mimetypes.guess_extension(mime_type) or "")
        return cls(name, mime_type, size_bytes)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Stores the files of one request.

    - `session`: id of the session or container of the request, None without one.
    - `ids`: the ids of the request's files.
    """

    files: FileStore
    session: str | None
    ids: list[str] = field(default_factory=list)

    async def create(self, known: _Known, data: bytes) -> None:
        stored = await self.files.create(
            NewFile(
                name=known.name,
                data=data,
                source=SOURCE,
                purpose=PURPOSE,
                mime_type=known.mime_type,
                session=self.session,
            )
        )
        self.ids.append(stored.id)


@dataclass(slots=True)
class _Budget:
    """Decides how the files of one request are shown, within the limits of a request.

    - `kinds`: the kinds of media that the model reads.
    - `left_chars`: characters left for further previews.
    - `num_files`: number of files so far.
    - `fetched_bytes`: bytes of fetched files and of stored media so far.
    """

    kinds: Collection[MediaKind]
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

    def media_kind(self, data: bytes, known: _Known) -> MediaKind | None:
        """Return the kind of media as which the model reads a binary file, None if it does not.
        `data`: at least its first bytes. A model that hears and sees no videos hears their
        sound."""
        kind = kind_of(data)
        if kind == "video" and (known.mime_type.startswith("audio/") or "video" not in self.kinds):
            kind = "audio"
        return kind if kind in self.kinds else None

    def show(self, known: _Known, beginning: str | None) -> Text:
        """Return the text that replaces a file. `beginning`: the start of a text file, None for a
        binary file.

        The text does not contain the file id: a client that sends the same file with each turn then
        sends the same prompt, which is found in the prefix cache.
        """
        head = f"{known.name}: {known.mime_type}, {known.size_bytes} bytes"
        if beginning is None:
            return Text(f"[File {head}, not shown]")
        shown = beginning[: min(MAX_PREVIEW_CHARS, self.left_chars)]
        self.left_chars -= len(shown)
        end = "[end of file]" if len(shown) == len(beginning) else "[the rest is not shown]"
        return Text(f"[File {head}]\n{shown}\n{end}")
