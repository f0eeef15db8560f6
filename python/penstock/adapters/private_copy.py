"""Copies an adapter's files and names the copy by the hash of its content.

The hash is computed from the copied bytes, and the adapter is loaded from the copy: later changes
of the source have no effect.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Final

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_config import (
    CONFIG_NAME,
    MAX_CONFIG_BYTES,
    WEIGHTS_NAME,
    PeftConfig,
)
from penstock.adapters.safe_open import open_file, resolve_folder

DOMAIN: Final = b"penstock-lora-generation-v1\0"
CHUNK_BYTES: Final = 1 << 20
MAX_WEIGHT_BYTES: Final = 8 << 30
WEIGHT_SLACK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class AdapterCopy:
    """A private copy of an adapter. `revision`: 64 hexadecimal digits. `folder`: the folder with
    the copy, which the caller must delete."""

    revision: str
    folder: Path


def copy_adapter(source: str, root: Path | None, store: Path, max_bytes: int) -> AdapterCopy:
    """Copy the adapter in the folder `source` into a new folder under `store`. `root`: see
    `resolve_folder`. `max_bytes`: the size limit of an adapter's factors, which also limits the
    files.

    Raises AdapterRefused: the errors of `safe_open`, `lora_adapter_file_too_large`,
    `adapter_file_changed`, `invalid_lora_adapter` for an invalid config, and
    `lora_storage_unavailable` if the copy cannot be written.
    """
    folder = resolve_folder(source, root)
    try:
        copy = Path(tempfile.mkdtemp(prefix="new-", dir=store))
    except OSError:
        raise _no_storage() from None
    try:
        return AdapterCopy(_copy_all(folder, root, copy, max_bytes), copy)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise


def revision_of(config_digest: bytes, weights_digest: bytes) -> str:
    """Return an adapter's revision, computed from the SHA-256 of its config and of its weights."""
    return hashlib.sha256(DOMAIN + config_digest + weights_digest).hexdigest()


def _copy_all(folder: Path, root: Path | None, copy: Path, max_bytes: int) -> str:
    limit = min(8 * max_bytes, MAX_WEIGHT_BYTES) + WEIGHT_SLACK_BYTES
    with (
        open(open_file(folder, CONFIG_NAME, root), "rb", buffering=0) as config,
        open(open_file(folder, WEIGHTS_NAME, root), "rb", buffering=0) as weights,
    ):
        before = [_identity(os.fstat(file.fileno())) for file in (config, weights)]
        config_digest = _copy(config, copy / CONFIG_NAME, MAX_CONFIG_BYTES)
        PeftConfig((copy / CONFIG_NAME).read_bytes())  # refuse it before copying a large file
        weights_digest = _copy(weights, copy / WEIGHTS_NAME, limit)
    try:
        after = [_identity(os.stat(folder / name)) for name in (CONFIG_NAME, WEIGHTS_NAME)]
    except OSError:
        raise _changed() from None
    if before != after:
        raise _changed()
    return revision_of(config_digest, weights_digest)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Return values that change if the file is written to or replaced."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _copy(source: RawIOBase, target: Path, limit_bytes: int) -> bytes:
    """Copy a file and return the SHA-256 of the copied bytes. Raises AdapterRefused if the file is
    larger than `limit_bytes` or changes."""
    size = os.fstat(source.fileno()).st_size
    if size > limit_bytes:
        raise AdapterRefused(
            "lora_adapter_file_too_large",
            f"{target.name} has {size} bytes; the limit is {limit_bytes}",
            field="lora_path",
        )
    digest = hashlib.sha256()
    copied = 0
    with _Output(target) as output:
        while chunk := _read(source):
            copied += len(chunk)
            if copied > size:
                raise _changed()
            digest.update(chunk)
            output.write(chunk)
    return digest.digest()


def _read(source: RawIOBase) -> bytes:
    try:
        return source.read(CHUNK_BYTES) or b""
    except OSError:
        raise AdapterRefused(
            "adapter_storage_unavailable", "the adapter's files cannot be read", field="lora_path"
        ) from None


class _Output:
    """Writes a new file that only its owner can read. Raises AdapterRefused
    `lora_storage_unavailable` if it cannot be created or written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Output:
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        except OSError:
            raise _no_storage() from None
        return self

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            raise _no_storage() from None

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _changed() -> AdapterRefused:
    return AdapterRefused(
        "adapter_file_changed",
        "the adapter's files changed while they were read",
        field="lora_path",
    )


def _no_storage() -> AdapterRefused:
    return AdapterRefused("lora_storage_unavailable", "the adapter's files cannot be stored")
