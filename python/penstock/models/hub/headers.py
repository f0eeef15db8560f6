"""Downloads the headers of weight files: a file gets its true size, with a hole in place of the
data. Such files tell the shapes and types of all tensors, and reading their data gives zeros."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import httpx

from penstock.base.errors import ModelError
from penstock.models.hub.download import refusal
from penstock.quant.gguf.gguf_header import GgufHeader, HeaderCutShort
from penstock.quant.mapped_file import MappedFile
from penstock.quant.safetensors.safetensors_file import MAX_HEADER_BYTES

FIRST_BYTES: Final = 1 << 20
"""Bytes of the first request. The header of most safetensors files is shorter."""

MAX_GGUF_HEADER_BYTES: Final = 256 << 20
_LENGTH: Final = struct.Struct("<Q")


def fetch_header(client: httpx.Client, url: str, path: Path, size_bytes: int) -> None:
    """Write the header of the weight file at `url` to `path`, followed by a hole up to
    `size_bytes`. A file that is no safetensors or GGUF file gets its whole content. Raises
    ModelError if the server refuses or the header is invalid."""
    with path.open("wb") as file:
        file.write(_range(client, url, 0, FIRST_BYTES))
    if path.suffix == ".safetensors":
        _complete_safetensors(client, url, path)
    elif path.suffix == ".gguf":
        _complete_gguf(client, url, path, size_bytes)
    else:
        _extend(client, url, path, size_bytes)
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def _complete_safetensors(client: httpx.Client, url: str, path: Path) -> None:
    with path.open("rb") as file:
        length = file.read(_LENGTH.size)
    header_bytes = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else 0
    if header_bytes > MAX_HEADER_BYTES:
        raise ModelError(f"{url}: a header of {header_bytes} bytes is too large")
    _extend(client, url, path, _LENGTH.size + header_bytes)


def _complete_gguf(client: httpx.Client, url: str, path: Path, size_bytes: int) -> None:
    """Download more of a GGUF file until its header is complete. Its length is not known before."""
    wanted = FIRST_BYTES
    while wanted < min(size_bytes, MAX_GGUF_HEADER_BYTES) and not _has_gguf_header(path):
        wanted = min(4 * wanted, size_bytes, MAX_GGUF_HEADER_BYTES)
        _extend(client, url, path, wanted)


def _has_gguf_header(path: Path) -> bool:
    """Return whether the metadata and all tensor entries are present. An invalid header counts as
    complete: the error is reported when the file is opened."""
    try:
        GgufHeader(MappedFile(path))
    except HeaderCutShort:
        return False
    except ModelError:  # also that the data are missing
        return True
    return True


def _extend(client: httpx.Client, url: str, path: Path, until: int) -> None:
    """Append the bytes of the file at `url` up to `until` that `path` lacks."""
    done = path.stat().st_size
    if done < until:
        with path.open("ab") as file:
            file.write(_range(client, url, done, until))


def _range(client: httpx.Client, url: str, start: int, end: int) -> bytes:
    """Return the bytes [start, end) of the file at `url`, or those up to its end."""
    headers = {"accept-encoding": "identity", "range": f"bytes={start}-{end - 1}"}
    parts: list[bytes] = []
    received = 0
    try:
        with client.stream("GET", url, headers=headers) as response:
            if response.status_code == 416:  # the file ends before
                return b""
            if response.status_code not in (200, 206):
                raise refusal(response)
            skip = start if response.status_code == 200 else 0  # the server sends the whole file
            for chunk in response.iter_raw():
                dropped = min(skip, len(chunk))
                skip -= dropped
                part = chunk[dropped : dropped + end - start - received]
                parts.append(part)
                received += len(part)
                if received == end - start:
                    break
    except httpx.HTTPError as error:
        raise ModelError(f"{url}: {error or type(error).__name__}") from None
    return b"".join(parts)
