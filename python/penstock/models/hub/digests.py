"""Hashes of files, and the record of a downloaded model's hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Digest:
    """The hash that a file must have. `git_blob`: the hash is that of git's blob object (a header
    and the content), not of the content alone."""

    algorithm: str
    hexdigest: str
    git_blob: bool = False


def file_digest(
    path: Path, digest: Digest, progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """Return the hexadecimal hash of a file. `progress`: called with the bytes read and the size
    of the file."""
    state = hashlib.new(digest.algorithm, usedforsecurity=False)
    done, size = 0, path.stat().st_size
    if digest.git_blob:
        state.update(b"blob %d\0" % size)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
            done += len(chunk)
            progress(done, size)
    return state.hexdigest()


def hashes_path(folder: Path) -> Path:
    """Return the path of the record of a model's hashes, beside its folder. `folder`: the final
    folder or the partial one of a download."""
    return folder.with_name(f"{folder.name.removesuffix('.partial')}.hashes")


def write_hashes(folder: Path, digests: Mapping[str, Digest]) -> None:
    """Record the hashes of a model's files. `digests`: path in the folder -> hash."""
    hashes_path(folder).write_bytes(msgspec.json.encode(digests))


def read_hashes(folder: Path) -> dict[str, Digest]:
    """Return the recorded hashes of a model's files; {} if there is no readable record, as for a
    model that an earlier version downloaded."""
    try:
        content = hashes_path(folder).read_bytes()
        return msgspec.json.decode(content, type=dict[str, Digest])
    except (OSError, msgspec.MsgspecError):
        return {}
