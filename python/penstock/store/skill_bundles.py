"""Reads an uploaded skill: a zip archive, or the files of one folder. Nothing in it is trusted."""

from __future__ import annotations

import io
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.store.records import SkillBundle

MAX_FILES: Final = 500
MAX_BYTES: Final = 50 * 1024 * 1024
MAX_PATH_CHARS: Final = 512
MAX_PART_BYTES: Final = 200
MAX_DESCRIPTION_CHARS: Final = 1024
MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_HEAD_LINES: Final = 1000
MANIFEST: Final = "SKILL.md"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What archivers add by themselves.
IGNORED_FOLDER: Final = "__MACOSX"
IGNORED_FILE: Final = ".DS_Store"
ZIP_MARK: Final = b"PK"
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED: Final = 0x1
READ_BYTES: Final = 256 * 1024
# Of the archive's list of entries, which is read as a whole, before any of them can be looked at.
MAX_DIRECTORY_BYTES: Final = 2 * MAX_FILES * 1024
# The record at the end of an archive: its mark, four counts, the directory's size and place, the
# length of a comment.
END_RECORD: Final = struct.Struct("<4s4H2LH")
END_MARK: Final = b"PK\5\6"
MAX_COMMENT_BYTES: Final = 1 << 16
# Before the end record of an archive in the Zip64 form, which only needs it beyond 4 GiB.
LOCATOR_MARK: Final = b"PK\6\7"
LOCATOR_BYTES: Final = 20


def read_bundle(uploads: Iterable[tuple[str, bytes]]) -> SkillBundle:
    """The skill in some uploaded files, (path, data) each. Raises InvalidRequest
    (`invalid_skill`), which says what is wrong with which file."""
    given = list(uploads)
    if not given:
        raise refused("`files` must hold a zip archive, or the files of one folder")
    if len(given) == 1 and given[0][1][:2] == ZIP_MARK:
        entries = _unzip(given[0][1])
    else:
        entries = iter(given)
    files = _checked(entries)
    directory, files = _inside_folder(files)
    name, description = read_manifest(files[MANIFEST])
    return SkillBundle(name=name, description=description, directory=directory or name, files=files)


def read_manifest(data: bytes) -> tuple[str, str]:
    """(name, description) of a SKILL.md. Its head is read line by line; an indented line goes on
    the one before it."""
    fields: dict[str, list[str]] = {}
    key = ""
    for line in _head_lines(data):
        if line[:1] in (" ", "\t") and key:
            fields[key].append(line.strip())
        elif ":" in line and line[:1] != "#":
            key, _, value = line.partition(":")
            key = key.strip()
            fields[key] = [value.strip()]
    told = {key: " ".join(filter(None, lines)) for key, lines in fields.items()}
    name, description = (_scalar(told.get(wanted, "")) for wanted in ("name", "description"))
    if not NAME.fullmatch(name):
        raise refused(
            f"{MANIFEST}: `name` must be 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    if not 0 < len(description) <= MAX_DESCRIPTION_CHARS:
        raise refused(f"{MANIFEST}: `description` must be 1 to {MAX_DESCRIPTION_CHARS} characters")
    return name, description


# What `zipfile` raises where the bytes are no sound archive.
DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def refused(why: str) -> InvalidRequest:
    """A skill that cannot be used."""
    return InvalidRequest(why, field="files", code="invalid_skill")


def _unzip(archive: bytes) -> Iterator[tuple[str, bytes]]:
    _check_directory(archive)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            if len(packed.infolist()) > 2 * MAX_FILES:
                raise refused(f"the archive has more than {MAX_FILES} files")
            if sum(entry.compress_size for entry in packed.infolist()) > len(archive):
                raise refused("the archive's entries overlap")
            left = MAX_BYTES
            for entry in packed.infolist():
                _check_entry(entry)
                if entry.is_dir():
                    continue
                data = _read_entry(packed, entry, left)
                left -= len(data)
                yield entry.filename, data
    except DAMAGE:
        raise refused("the archive is damaged") from None


def _check_directory(archive: bytes) -> None:
    """Bound the list of entries by what the end record says of it. The record is looked for where
    `zipfile` looks: without a comment at the very end, else the last mark that is near enough."""
    at = len(archive) - END_RECORD.size
    if archive[at : at + 4] != END_MARK or archive[-2:] != b"\0\0":
        at = archive.rfind(END_MARK, max(0, at - MAX_COMMENT_BYTES))
    if not 0 <= at <= len(archive) - END_RECORD.size:
        raise refused("the archive is damaged")
    size_bytes = END_RECORD.unpack_from(archive, at)[5]
    if size_bytes > MAX_DIRECTORY_BYTES:
        raise refused(f"the archive's list of files has more than {MAX_DIRECTORY_BYTES} bytes")
    if archive[max(0, at - LOCATOR_BYTES) :].startswith(LOCATOR_MARK):
        raise refused("the archive has the Zip64 form, which no skill needs")


def _check_entry(entry: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise refused(f"{_shown(entry.filename)} is a link or a special file")
    if entry.flag_bits & ENCRYPTED:
        raise refused(f"{_shown(entry.filename)} is encrypted")
    if entry.compress_type not in METHODS:
        raise refused(f"{_shown(entry.filename)} is neither stored nor deflated")


def _read_entry(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, left: int) -> bytes:
    """What an entry really unpacks to; its own word for the size counts for nothing."""
    data = bytearray()
    with packed.open(entry) as file:
        while piece := file.read(READ_BYTES):
            data += piece
            if len(data) > left:
                raise refused(f"the skill unpacks to more than {MAX_BYTES} bytes")
    return bytes(data)


def _checked(entries: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Files by path: no path leaves the folder, none is another one's in other letters."""
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    size = 0
    for path, data in entries:
        parts = path.split("/")
        if parts[0] == IGNORED_FOLDER or parts[-1] == IGNORED_FILE:
            continue
        _check_path(path, parts)
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in seen:
            raise refused(f"{_shown(path)} is there twice; letter case does not tell files apart")
        seen.add(folded)
        size += len(data)
        if len(seen) > MAX_FILES:
            raise refused(f"a skill may have at most {MAX_FILES} files")
        if size > MAX_BYTES:
            raise refused(f"a skill may have at most {MAX_BYTES} bytes")
        files[path] = data
    for folded in seen:
        parents = [folded[:end] for end, c in enumerate(folded) if c == "/"]
        if any(parent in seen for parent in parents):
            raise refused(f"{_shown(folded)} lies in a file")
    return files


def _check_path(path: str, parts: list[str]) -> None:
    good = (
        len(path) <= MAX_PATH_CHARS
        and path.isprintable()
        and "\\" not in path
        and ":" not in path
        and not any(part in ("", ".", "..") for part in parts)
        and not any(len(part.encode()) > MAX_PART_BYTES for part in parts)
    )
    if not good:
        raise refused(f"{_shown(path)} is not a relative path of plain names with slashes")


def _inside_folder(files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """(the one folder, its files); no folder where SKILL.md lies at the top."""
    if MANIFEST in files:
        return "", files
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1:
        raise refused(f"the files must lie in one folder with a {MANIFEST}")
    directory = tops.pop()
    inside = {path.partition("/")[2]: data for path, data in files.items()}
    if MANIFEST not in inside:
        raise refused(f"there is no {MANIFEST} in the folder {_shown(directory)}")
    return directory, inside


def _head_lines(data: bytes) -> list[str]:
    try:
        lines = data[:MAX_MANIFEST_BYTES].decode().splitlines()
    except UnicodeDecodeError:
        raise refused(f"{MANIFEST} must be UTF-8") from None
    lines[:1] = [line.removeprefix("\ufeff") for line in lines[:1]]
    if not lines or lines[0].strip() != "---":
        raise refused(f"{MANIFEST} must begin with a head between lines of ---")
    for index, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return lines[1:index]
        if index > MAX_HEAD_LINES:
            raise refused(f"the head of {MANIFEST} has more than {MAX_HEAD_LINES} lines")
    raise refused(f"the head of {MANIFEST} has no end: a line of ---")


def _scalar(value: str) -> str:
    """Without quotes, and without the mark of a text that goes on in indented lines."""
    value = re.sub(r"^[>|][+-]?(\s|$)", "", value).strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def _shown(path: str) -> str:
    cut = path if len(path) <= 80 else path[:80] + "..."
    return repr(cut)
