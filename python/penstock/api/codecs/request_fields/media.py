"""Decodes media and files of a request: URLs, data: URLs and base64."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from penstock.api.codecs.request_fields.refusals import refuse
from penstock.base.data_url import SCHEME, decode_base64, decode_data_url

MAX_URL_CHARS: Final = 8192
MAX_DATA_BYTES: Final = 64 * 1024 * 1024

Source = tuple[str | None, bytes | None, str | None]
"""(URL, content, media type): the first three fields of Image, Audio and Video, in this order."""


def decode_source(value: str, path: str) -> Source:
    """Return the Source of an http(s) URL or of a data: URL. Raises InvalidRequest."""
    if value[: len(SCHEME)].lower() == SCHEME:
        data, mime_type = decode_data(value, path)
        return None, data, mime_type
    return decode_address(value, path), None, None


def decode_address(value: str, path: str) -> str:
    """Check an http(s) URL and return it. The fetcher decides later whether the URL may be fetched.
    Raises InvalidRequest."""
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
    """Return (content, media type) of a data: URL or of plain base64, for which the media type is
    None. Raises InvalidRequest."""
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
    """Return the last component of a file name that may be a path; None if the component is
    empty."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1].strip()
    return last if last not in ("", ".", "..") else None
