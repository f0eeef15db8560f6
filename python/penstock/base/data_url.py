"""Decodes `data:` URLs (RFC 2397) and the variants of base64 that clients send."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import unquote_to_bytes

SCHEME: Final = "data:"
URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
WHITE_SPACE: Final = b" \t\n\r\v\f"
MAX_HEAD_CHARS: Final = 4096
PIECE_CHARS: Final = 64 * 1024
ESCAPE_CHARS: Final = len("%41")
# Decoding one escape takes 0.5 us. Clients send large content as base64, without escapes.
MAX_ESCAPES: Final = 1024 * 1024


def decode_data_url(url: str) -> tuple[bytes, str | None]:
    """Return (content, media type) of a data: URL; the media type is None if the URL has none.
    Raises ValueError."""
    if url[: len(SCHEME)].lower() != SCHEME:
        raise ValueError("not a data: URL")
    comma = url.find(",", 0, len(SCHEME) + MAX_HEAD_CHARS)
    if comma < 0:
        raise ValueError("a data: URL must have a comma before its content")
    data = url[comma + 1 :]
    kind, *parameters = url[len(SCHEME) : comma].split(";")
    if parameters and parameters[-1].strip().lower() == "base64":
        text = _unquote(data).decode("ascii") if "%" in data else data
        content = decode_base64(text)
    else:
        content = _unquote(data)
    return content, kind.strip().lower() or None


def _unquote(text: str) -> bytes:
    """Decode percent escapes. Works on pieces of the text, because `unquote_to_bytes` creates an
    object per escape; pieces are cut only between escapes. Raises ValueError for more than
    MAX_ESCAPES."""
    if text.count("%") > MAX_ESCAPES:
        raise ValueError("too many percent escapes; send base64")
    content = bytearray()
    start = 0
    while start < len(text):
        end = start + PIECE_CHARS
        cut = text.find("%", end - ESCAPE_CHARS + 1, end)
        end = end if cut < 0 or end >= len(text) else cut
        content += unquote_to_bytes(text[start:end])
        start = end
    return bytes(content)


def decode_base64(text: str) -> bytes:
    """Decode base64 in the standard or the URL-safe alphabet, with or without padding. White space
    is ignored. Raises ValueError."""
    packed = text.encode("ascii").translate(URL_SAFE, WHITE_SPACE).rstrip(b"=")
    try:
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
