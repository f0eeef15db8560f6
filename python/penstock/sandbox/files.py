"""Files of a container's working directory, as its init lists them."""

from __future__ import annotations

import msgspec

from penstock.sandbox.wire import Fields, Frame


class ListedFile(msgspec.Struct, frozen=True):
    """A regular file of the working directory. Two equal values mean an unchanged file."""

    path: str
    size_bytes: int
    mtime_ns: int
    inode: int


class FileListing(msgspec.Struct, frozen=True):
    """The regular files of the working directory. `truncated`: there are more."""

    files: tuple[ListedFile, ...]
    truncated: bool


def check_path(path: str) -> None:
    """Raise ValueError unless the path is relative and has no empty, "." and ".." parts."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} must be a relative path without empty, '.' and '..' parts")


def listed_files(frame: Frame) -> list[ListedFile]:
    """Return the files of an ENTRIES frame, without those whose names are not UTF-8.

    Raises FrameError.
    """
    fields = Fields(frame.payload)
    files: list[ListedFile] = []
    while not fields.empty():
        name = fields.data()
        numbers = fields.u64(), fields.u64(), fields.u64()
        try:
            files.append(ListedFile(name.decode(), *numbers))
        except UnicodeDecodeError:
            continue
    return files
