"""`data:` URLs (RFC 2397), and base64 as clients send it."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import unquote_to_bytes

SCHEME: Final = "data:"
URL_SAFE: Final = str.maketrans("-_", "+/")


def decode_data_url(url: str) -> tuple[bytes, str | None]:
    """(content, media type or None where the URL names none). Raises ValueError."""
    if url[: len(SCHEME)].lower() != SCHEME:
        raise ValueError("not a data: URL")
    head, comma, data = url[len(SCHEME) :].partition(",")
    if not comma:
        raise ValueError("a data: URL has a comma before its content")
    kind, *parameters = head.split(";")
    if parameters and parameters[-1].strip().lower() == "base64":
        text = unquote_to_bytes(data).decode("ascii") if "%" in data else data
        content = decode_base64(text)
    else:
        content = unquote_to_bytes(data)
    return content, kind.strip().lower() or None


def decode_base64(text: str) -> bytes:
    """Content of base64 in either alphabet, padded or not; white space in it is skipped. Raises
    ValueError."""
    packed = "".join(text.split()).translate(URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
