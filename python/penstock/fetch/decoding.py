"""Decodes the content encodings of responses piece by piece, so that a small response cannot become
a large one in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Literal, Protocol

Encoding = Literal["gzip"]
"""A content encoding that a Fetcher can accept."""

PIECE_BYTES: Final = 64 * 1024
_GZIP_FORMAT: Final = 16 + zlib.MAX_WBITS


class BadEncoding(Exception):
    """The content does not follow its encoding, or ends too early."""


class Decoder(Protocol):
    """Decodes the content of one response."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded content of the next received bytes. Raises BadEncoding."""
        ...

    def finish(self) -> None:
        """Check that the content is complete. Raises BadEncoding."""
        ...


class Identity:
    """Passes content through."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Implement `Decoder`."""
        yield data

    def finish(self) -> None:
        """Implement `Decoder`."""


class Gzip:
    """Decodes gzip in pieces of at most PIECE_BYTES. Bytes after the first member are ignored."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_FORMAT)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Implement `Decoder`."""
        while data and not self._stream.eof:
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except zlib.error:
                raise BadEncoding from None
            data = self._stream.unconsumed_tail
            yield piece

    def finish(self) -> None:
        """Implement `Decoder`."""
        if not self._stream.eof:
            raise BadEncoding
