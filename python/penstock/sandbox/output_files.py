"""The files that jobs make: which of them are surfaced, and collecting them within limits."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Final

from penstock.sandbox.launcher import FileListing, Sandbox, SandboxFileError
from penstock.sandbox.types import CollectedFile, DeclaredFile

MAX_FILES: Final = 64
MAX_FILE_BYTES: Final = 32 * 1024 * 1024
MAX_CALL_BYTES: Final = 64 * 1024 * 1024
MAX_NAME_CHARS: Final = 200


def changed(before: FileListing, after: FileListing) -> list[str]:
    """Return the paths of new and changed files, sorted.

    If not all files were listed before, a file that is new in the list may be an old one. Then
    only changed files are returned.
    """
    old = {file.path: file for file in before.files}
    return sorted(
        file.path
        for file in after.files
        if old.get(file.path, None if not before.truncated else file) != file
    )


class Collector:
    """Reads the files of one call. Each path is collected once, up to the limits."""

    def __init__(self, sandbox: Sandbox, listing: FileListing) -> None:
        self._sandbox = sandbox
        self._sizes = {file.path: file.size_bytes for file in listing.files}
        self._files: dict[str, CollectedFile] = {}
        self._left_bytes = MAX_CALL_BYTES

    def files(self) -> tuple[CollectedFile, ...]:
        return tuple(self._files.values())

    async def add_declared(self, outputs: Iterable[DeclaredFile]) -> None:
        """Collect declared files. A file that cannot be collected becomes an error entry."""
        for output in outputs:
            path = self._relative(output.name)
            if len(self._files) < MAX_FILES and path not in self._files:
                self._files[path] = await self._read(path, output.name)

    async def add_changed(self, paths: Iterable[str]) -> None:
        """Collect changed files. A file that has disappeared since it was listed is left out."""
        for path in paths:
            if len(self._files) >= MAX_FILES:
                return
            if path not in self._files:
                file = await self._read(path, path)
                if file.code is None:
                    self._files[path] = file

    def _relative(self, name: str) -> str:
        """Return a declared name relative to the working directory, as paths are compared."""
        path = posixpath.normpath(name)
        folder = self._sandbox.working_directory
        return posixpath.relpath(path, folder) if path.startswith(f"{folder}/") else path

    async def _read(self, path: str, name: str) -> CollectedFile:
        limit = min(MAX_FILE_BYTES, self._left_bytes)
        try:
            data = await self._sandbox.read_file(path, limit)
        except SandboxFileError as error:
            if error.code == "too_large":  # named, but not kept
                return CollectedFile(name=path, size_bytes=self._sizes.get(path, 0))
            return CollectedFile(name=name, code=error.code, message=str(error))
        self._left_bytes -= len(data)
        return CollectedFile(name=path, data=data, size_bytes=len(data))


def input_name(name: str, taken: Iterable[str]) -> str:
    """Return a safe name for an input file: `data.csv`, then `data-2.csv`, `data-3.csv`.

    Spaces and letters of all languages stay, because the model knows the file by this name.
    """
    safe = re.sub(r"[\x00-\x1f\x7f\\]", "_", posixpath.basename(name)).lstrip(".-") or "file"
    stem, suffix = posixpath.splitext(safe[-MAX_NAME_CHARS:])
    used = set(taken)
    number, candidate = 1, stem + suffix
    while candidate in used:
        number += 1
        candidate = f"{stem}-{number}{suffix}"
    return candidate
