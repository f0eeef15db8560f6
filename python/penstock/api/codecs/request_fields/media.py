"""Media and files in a request: addresses, data: URLs and base64 -> parts of the dialog."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from penstock.api.codecs.request_fields.fields import Fields
from penstock.base.data_url import SCHEME, decode_base64, decode_data_url
from penstock.dialog import File

MAX_URL_CHARS: Final = 8192
MAX_DATA_BYTES: Final = 64 * 1024 * 1024
MAX_FILE_NAME_CHARS: Final = 255
MAX_ID_CHARS: Final = 256

Source = tuple[str | None, bytes | None, str | None]
"""Address, content, media type: the fields of Image, Audio and Video in their order."""


def decode_source(fields: Fields, key: str) -> Source:
    """An http(s) address, or a data: URL, which is decoded at once."""
    value = fields.required_string(key)
    if value[: len(SCHEME)].lower() == SCHEME:
        data, mime_type = decode_data(fields, key)
        return None, data, mime_type
    return decode_address(fields, key), None, None


def decode_address(fields: Fields, key: str) -> str:
    """An http(s) address. Whether it may be fetched is decided where it is."""
    value = fields.required_string(key)
    if len(value) > MAX_URL_CHARS:
        fields.refuse(key, f"may have at most {MAX_URL_CHARS} characters, not {len(value)}")
    try:
        parts = urlsplit(value)
    except ValueError:
        fields.refuse(key, "is not a valid URL")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        fields.refuse(key, "must be an http:, https: or data: URL")
    return value


def decode_data(fields: Fields, key: str) -> tuple[bytes, str | None]:
    """Content and its media type, from a data: URL or plain base64 (which names no type)."""
    value = fields.required_string(key)
    if len(value) > MAX_DATA_BYTES * 4 // 3 + MAX_URL_CHARS:
        fields.refuse(key, f"may hold at most {MAX_DATA_BYTES} bytes")
    try:
        if value[: len(SCHEME)].lower() == SCHEME:
            data, mime_type = decode_data_url(value)
        else:
            data, mime_type = decode_base64(value), None
    except ValueError:
        fields.refuse(key, "is neither base64 nor a valid data: URL")
    if not data:
        fields.refuse(key, "must not be empty")
    return data, mime_type


def decode_file(fields: Fields) -> File:
    """`{file_id}` or `{filename, file_data}`, and never both."""
    file_id = decode_file_id(fields)
    name = decode_file_name(fields, "filename")
    has_data = fields.get("file_data") is not None
    if file_id is not None and has_data:
        fields.refuse("file_data", "cannot be used together with `file_id`")
    if file_id is not None:
        return File(file_id=file_id, name=name)
    if not has_data:
        fields.refuse_missing("file_data", "base64 or a data: URL, or a `file_id` in its place")
    data, mime_type = decode_data(fields, "file_data")
    return File(name=name, data=data, mime_type=mime_type)


def decode_file_id(fields: Fields) -> str | None:
    """The id of a stored file, None where it is absent."""
    file_id = fields.string("file_id")
    if file_id is not None and not 1 <= len(file_id) <= MAX_ID_CHARS:
        fields.refuse("file_id", f"must have 1 to {MAX_ID_CHARS} characters")
    return file_id


def decode_file_name(fields: Fields, key: str) -> str | None:
    """A name without folders, None where it is absent or empty."""
    name = fields.string(key)
    if name is None:
        return None
    if len(name) > MAX_FILE_NAME_CHARS:
        fields.refuse(key, f"may have at most {MAX_FILE_NAME_CHARS} characters, not {len(name)}")
    return base_name(name)


def base_name(name: str) -> str | None:
    """The last step of what may be a path; None where nothing is left."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1].strip()
    return last if last not in ("", ".", "..") else None
