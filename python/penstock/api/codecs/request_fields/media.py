"""Media and files in a request: addresses, data: URLs and base64 -> parts of the dialog."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from penstock.api.codecs.request_fields.refusals import refuse
from penstock.base.data_url import SCHEME, decode_base64, decode_data_url

MAX_URL_CHARS: Final = 8192
MAX_DATA_BYTES: Final = 64 * 1024 * 1024

Source = tuple[str | None, bytes | None, str | None]
"""Address, content, media type: the fields of Image, Audio and Video in their order."""


def decode_source(value: str, path: str) -> Source:
    """Return an http(s) address, or the content of a data: URL."""
    if value[: len(SCHEME)].lower() == SCHEME:
        data, mime_type = decode_data(value, path)
        return None, data, mime_type
    return decode_address(value, path), None, None


def decode_address(value: str, path: str) -> str:
    """Return an http(s) address. The fetcher decides whether it may be fetched."""
    if len(value) > MAX_URL_CHARS:
        refuse(path, f"may have at most {MAX_URL_CHARS} characters, not {len(value)}")
    try:
        parts = urlsplit(value)
    except ValueError:
        refuse(path, "is not a valid URL")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        refuse(path, "must be an http:, https: or data: URL")
    return value


def decode_data(value: str, path: str) -> tuple[bytes, str | None]:
    """Return content and its media type, from a data: URL or plain base64 (which has no type)."""
    if len(value) > MAX_DATA_BYTES * 4 // 3 + MAX_URL_CHARS:
        refuse(path, f"may hold at most {MAX_DATA_BYTES} bytes")
    try:
        if value[: len(SCHEME)].lower() == SCHEME:
            data, mime_type = decode_data_url(value)
        else:
            data, mime_type = decode_base64(value), None
    except ValueError:
        refuse(path, "is neither base64 nor a valid data: URL")
    if not data:
        refuse(path, "must not be empty")
    return data, mime_type


def base_name(name: str) -> str | None:
    """Return the last step of a name that may be a path, without folders; None if it is empty."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1].strip()
    return last if last not in ("", ".", "..") else None
